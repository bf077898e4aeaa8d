"""Fine-tuning with a frozen stem: what is found keeps what the weights know."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import excite


def net() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 49, 10)),
    )


def noisy(images: Tensor) -> Tensor:
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(7))
    return (images + 0.4 * noise).clamp(0, 1)


def train(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], optimizer: SGD, epochs: int) -> None:
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def test_a_head_on_a_frozen_stem_stays_as_good_as_it_was() -> None:
    """The digits become noisy: batches differ by more than there is to gain, and large rates cost points.

    Judged as runs from fresh weights are, 1/L is 0.25 and 2/L costs 2.5 points (docs/four-scripts.md).
    """
    torch.manual_seed(1)
    digits = excite.data.load("mnist-sample")
    x, y = digits.train.floats(), digits.train.labels
    model = net()
    before = SGD(model.parameters(), 0.05, momentum=0.9)
    train(model, DataLoader(TensorDataset(x[:4000], y[:4000]), 64, shuffle=True), before, 3)
    model[:-1].requires_grad_(False)
    model[:-1].eval()
    loader = DataLoader(TensorDataset(noisy(x[4000:4500]), y[4000:4500]), 32, shuffle=True)
    test = noisy(digits.test.floats())

    def accuracy(rate: float) -> float:
        torch.manual_seed(5)
        tuned = copy.deepcopy(model)
        train(tuned, loader, SGD(tuned[-1].parameters(), rate), 10)
        return float((tuned(test).argmax(1) == digits.test.labels).float().mean())

    head = SGD(model[-1].parameters(), 0.1)
    estimate = excite.find_learning_rate(model, loader, cross_entropy, head, weights="present", budget=1000)
    assert estimate.identified
    customary = accuracy(0.1)
    assert accuracy(0.5) < customary - 0.01
    for multiple in (1, 2):
        assert accuracy(estimate.learning_rate(multiple)) >= customary - 0.01
