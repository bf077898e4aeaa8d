"""A small CNN with cosine decay, bfloat16 and gradient clipping; excite adds only the lines that end in `# +`.

python examples/cnn.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from excite import find_learning_rate, rescale_scheduler  # +
from excite.data import load

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
digits = load("mnist-sample")  # 5,000 handwritten digits, and 1,000 others
loader = DataLoader(TensorDataset(digits.train.floats(), digits.train.labels), batch_size=64, shuffle=True)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
)
epochs = args.epochs
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    images, labels = batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(images)
    return cross_entropy(logits.float(), labels)


estimate = find_learning_rate(model, loader, scheduler=scheduler, step=loss_of, clip_grad_norm=1, epochs=epochs)  # +
print(estimate)  # +
rescale_scheduler(scheduler, estimate)  # +

for epoch in range(epochs):
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(digits.test.floats()).argmax(1) == digits.test.labels).float().mean())
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {accuracy:.1%}")
