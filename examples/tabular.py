"""A perceptron on a table with AdamW and OneCycleLR; excite adds only the lines that end in `# +`.

python examples/tabular.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from excite import find_learning_rate, rescale_scheduler  # +
from excite.data import load

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def columns(images: Tensor) -> Tensor:
    """A table of 58 columns: the ink in each row and column of a picture, and its mean and spread."""
    ink = images.squeeze(1)
    return torch.cat([ink.mean(1), ink.mean(2), ink.mean((1, 2)).unsqueeze(1), ink.std((1, 2)).unsqueeze(1)], 1)


torch.manual_seed(args.seed)
digits = load("mnist-sample")  # 5,000 handwritten digits, and 1,000 others
table, test_table = columns(digits.train.floats()), columns(digits.test.floats())
mean, spread = table.mean(0), table.std(0) + 1e-3
table, test_table = (table - mean) / spread, (test_table - mean) / spread
loader = DataLoader(TensorDataset(table, digits.train.labels), batch_size=128, shuffle=True)
model = nn.Sequential(
    *(nn.Linear(58, 128), nn.ReLU(), nn.Dropout(0.1)),
    *(nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.1)),
    nn.Linear(128, 10),
)
total = args.epochs * len(loader)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total)

estimate = find_learning_rate(model, loader, cross_entropy, scheduler=scheduler, total_steps=total)  # +
print(estimate)  # +
rescale_scheduler(scheduler, estimate)  # +

for epoch in range(args.epochs):
    model.train()
    for rows, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(test_table).argmax(1) == digits.test.labels).float().mean())
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {accuracy:.1%}")
