"""Fine-tuning with a frozen stem, from digits 0 to 4 to 5 to 9; excite adds only the lines that end in `# +`.

python examples/fine_tuning.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from excite import find_learning_rate, rescale_scheduler  # +
from excite.data import load

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
digits = load("mnist-sample")


def batches(large: bool, most: int) -> DataLoader[tuple[Tensor, ...]]:
    """Images of 5 to 9, or of 0 to 4, as classes 0 to 4."""
    chosen = ((digits.train.labels >= 5) == large).nonzero().flatten()[:most]
    return DataLoader(
        TensorDataset(digits.train.floats()[chosen], digits.train.labels[chosen] % 5), batch_size=32, shuffle=True
    )


stem = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
)
head = nn.Linear(64, 5)
model = nn.Sequential(stem, nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), head)
before = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(3):  # what a network from the internet has behind it
    for images, labels in batches(large=False, most=2500):
        before.zero_grad()
        cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        before.step()

stem.requires_grad_(False)
head.reset_parameters()  # for the new classes
loader = batches(large=True, most=1000)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=args.lr, momentum=0.9)
scheduler = StepLR(optimizer, args.epochs // 2)
epochs = args.epochs

estimate = find_learning_rate(model, loader, cross_entropy, scheduler=scheduler, weights="present", epochs=epochs)  # +
print(estimate)  # +
rescale_scheduler(scheduler, estimate)  # +

test = digits.test.labels >= 5
for epoch in range(epochs):
    model.train()
    stem.eval()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(digits.test.floats()[test]).argmax(1) == digits.test.labels[test] % 5).float().mean())
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {accuracy:.1%}")
