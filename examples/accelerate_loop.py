"""A loop under Hugging Face's accelerate; excite adds only the lines that end in `# +`.

pip install "excite[transformers]"; python examples/accelerate_loop.py
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

import excite  # +


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--budget", type=int, default=1000)
    arguments = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(0)
    train = excite.data.load("mnist-sample").train
    loader = DataLoader(TensorDataset(train.floats(), train.labels), batch_size=64, shuffle=True)
    model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.9)

    model.to(accelerator.device)  # +
    estimate = excite.find_learning_rate(model, loader, cross_entropy, optimizer, budget=arguments.budget)  # +
    accelerator.print(estimate)  # +
    excite.rescale_scheduler(scheduler, estimate)  # +

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(arguments.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
        scheduler.step()
        accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.3f}, rate {scheduler.get_last_lr()[0]:.3g}")


if __name__ == "__main__":
    main()
