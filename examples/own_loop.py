"""Any training loop: find L for any model, loss and data, then train at 1/L.

python examples/own_loop.py
"""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import excite

digits = excite.data.load("mnist-sample")
images, labels = digits.train.floats(), digits.train.labels


def new_model(draw: int = 0) -> nn.Module:
    torch.manual_seed(draw)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10))


def losses_at(rate: float, draw: int, steps: int, model: nn.Module | None = None) -> Iterator[float]:
    """Your own loop, which yields the loss of each step. Each draw has its own initial weights and data order."""
    model = model or new_model(draw)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    order = torch.Generator().manual_seed(draw)
    for _ in range(steps):
        batch = torch.randint(len(labels), (64,), generator=order)
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield loss.item()


def main() -> None:
    estimate = excite.find_edge(losses_at, budget=2200)
    print(estimate)

    model = new_model()
    *_, final = losses_at(estimate.learning_rate(), 0, 1000, model)
    attack = excite.attacks.create("pgd", eps=0.1, step=0.01, steps=40)
    print(f"Trained at 1/L to a loss of {final:.3f}.")
    print(excite.evaluate(model.eval(), digits.test.floats(), digits.test.labels, {"PGD": attack}))


if __name__ == "__main__":
    main()
