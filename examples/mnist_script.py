"""An ordinary training script; excite adds only the lines that end in `# +`.

python examples/mnist_script.py --epochs 3
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import excite  # +


def digits(train: bool, batch_size: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """5,000 handwritten digits, or 1,000 others; put your own data set here."""
    from excite.data import load

    split = load("mnist-sample").train if train else load("mnist-sample").test
    return DataLoader(TensorDataset(split.floats(), split.labels), batch_size, shuffle=train)


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 12 * 12, 10)
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--budget", type=int, default=1000)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    loader, test_loader = digits(True, 64), digits(False, 1000)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)

    estimate = excite.find_learning_rate(model, loader, cross_entropy, optimizer, budget=arguments.budget)  # +
    print(estimate)  # +
    excite.rescale_scheduler(scheduler, estimate)  # +
    recorder = excite.Recorder(model, optimizer)  # +

    for epoch in range(arguments.epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        recorder.record()  # +
        scheduler.step()
        model.eval()
        with torch.no_grad():
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test_loader)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {right} of 1000 right")

    if arguments.epochs >= 3:
        print(excite.acuteness(recorder.trace))  # +


if __name__ == "__main__":
    main()
