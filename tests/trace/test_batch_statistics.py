"""Batch statistics are those of the drawn examples, and unbiased for the loss of all examples."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.trace import Recorder
from excite.trace.batch_statistics import BatchNoise
from excite.trace.moments import Vectors, Whole
from excite.trace.probe import Probe

CURVATURES = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)
EXAMPLES = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
TARGETS = torch.zeros(len(EXAMPLES))


class Quadratic(nn.Module):
    """The loss of an example x is ½ Σ λᵢ (θᵢ − xᵢ)², so that its gradient is λ(θ − x)."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([2.0, -1.0, 4.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (CURVATURES * (self.theta - x).square()).sum(1) / 2


def mean_loss(losses: Tensor, _: Tensor) -> Tensor:
    return losses.mean()


def step(model: Quadratic, optimizer: torch.optim.Optimizer, x: Tensor = EXAMPLES) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(model(x).mean())
    optimizer.step()


@pytest.mark.parametrize("storage", ["exact", "sketch"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_they_are_those_of_the_drawn_examples(storage: Any, nesterov: bool) -> None:
    """Computed again from gradients, momentum buffers and positions that are kept; a small model's sketch is exact."""
    momentum, decay, size = 0.9, 0.1, 4
    model = Quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, weight_decay=decay, nesterov=nesterov)
    recorder = Recorder(
        model,
        optimizer,
        loss=mean_loss,
        slopes_per_epoch=0,
        storage=storage,
        batch_size=size,
        draw=lambda moment: (EXAMPLES[moment : moment + 14], TARGETS[:14]),  # three batches of 4; 2 are left
    )
    positions, buffers = [], []
    for _ in range(4):
        for part in torch.split(EXAMPLES, 10):
            step(model, optimizer, part)
        recorder.record()
        positions.append(model.theta.detach().clone())
        buffers.append(optimizer.state[model.theta]["momentum_buffer"].clone())
    for index, (theta, buffer) in enumerate(zip(positions, buffers, strict=True)):
        batches = EXAMPLES[index + 1 : index + 13].view(3, size, 3).mean(1)
        gradients = CURVATURES * (theta - batches) + decay * theta
        mean, carry, way = gradients.mean(0), momentum ** (1 + nesterov) * buffer, theta - positions[-1]
        variance = (gradients - mean).square().sum() / 2
        expected = [
            mean @ mean - variance / 3,
            size * variance,
            mean @ carry,
            carry @ carry,
            mean @ way,
            carry @ way,
        ]
        np.testing.assert_allclose(recorder.trace.batch_statistics[index], expected, rtol=1e-9, atol=1e-12)


def test_they_are_unbiased() -> None:
    """Two batches of 5 give the mean and the covariance of all examples, within four standard errors of 400 draws."""
    model = Quadratic()
    here, n = model.theta.detach().clone(), 400

    def draw(_: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(EXAMPLES), (10,))
        return EXAMPLES[chosen], TARGETS[chosen]

    parameters: list[Tensor] = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    make_probe = partial(Probe, loss=mean_loss)
    noise = BatchNoise(
        model, parameters, Whole(parameters), optimizer, draw, make_probe=make_probe, batch_size=5, seed=0, folder=None
    )
    path, way = Vectors("parameters"), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for moment in range(n):
        noise.measure(moment)
        path.append(here)
    path.append(here - way)
    rows = np.array(noise.rows(path))
    gradients = CURVATURES * (here - EXAMPLES)
    mean = gradients.mean(0)
    truth: list[Any] = [mean @ mean, (gradients - mean).square().sum() / len(EXAMPLES), 0.0, 0.0, mean @ way, 0.0]
    errors = rows.std(0) / n**0.5
    assert (abs(rows.mean(0) - np.array(truth)) <= 4 * errors + 1e-12).all()
    assert (errors[[0, 1, 4]] > 0).all()
    assert errors[1] < 0.1 * truth[1]  # the test could fail


@pytest.mark.parametrize(
    ("optimizer", "examples", "keyword"),
    [
        (torch.optim.Adam, 20, "SGD"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), 20, "dampening"),
        (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), 20, "maximize"),
        (lambda p: torch.optim.SGD(p, lr=0.1), 1, "at least 2"),
    ],
)
def test_refuses_what_it_cannot_measure(optimizer: Any, examples: int, keyword: str) -> None:
    model = Quadratic()
    made = optimizer(model.parameters())

    def record() -> None:
        recorder = Recorder(model, made, loss=mean_loss, draw=lambda _: (EXAMPLES[:examples], TARGETS[:examples]))
        step(model, made)
        recorder.record()

    with pytest.raises(InputError, match=keyword):
        record()


def test_one_rate_and_momentum_for_all_layers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups: list[dict[str, Any]] = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.2}]
    with pytest.raises(InputError, match="one learning rate"):
        Recorder(model, torch.optim.SGD(groups, lr=0.1), draw=lambda _: (EXAMPLES, TARGETS))
