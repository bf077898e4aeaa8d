"""torch's own transformer with a class token, a warm-up and dict batches; excite adds only the lines that end in `# +`.

python examples/transformer.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, unfold
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader

from excite import find_learning_rate, rescale_scheduler  # +
from excite.data import load

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Transformer(nn.Module):
    """A picture is 16 tokens of 7×7 pixels; the class token, the first, is read out."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Linear(49, width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.classes = nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.tokens(unfold(pixels, 7, stride=7).transpose(1, 2))
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], 1) + self.positions
        return self.classes(self.encoder(tokens)[:, 0])  # type: ignore[no-any-return]


torch.manual_seed(args.seed)
digits = load("mnist-sample")  # 5,000 handwritten digits, and 1,000 others
train = [
    {"pixels": pixels, "labels": label}
    for pixels, label in zip(digits.train.floats(), digits.train.labels, strict=True)
]
loader = DataLoader(train, batch_size=64, shuffle=True)  # type: ignore[arg-type, var-annotated]
model = Transformer()
total = args.epochs * len(loader)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
warm_up = LinearLR(optimizer, 0.01, total_iters=total // 10)
scheduler = SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, total - total // 10)], [total // 10])

estimate = find_learning_rate(model, loader, cross_entropy, scheduler=scheduler, total_steps=total)  # +
print(estimate)  # +
rescale_scheduler(scheduler, estimate)  # +

for epoch in range(args.epochs):
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(batch["pixels"]), batch["labels"])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(digits.test.floats()).argmax(1) == digits.test.labels).float().mean())
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {accuracy:.1%}")
