from collections.abc import Callable

import pytest
import torch

from excite.lipschitz.edge import described
from tests.lipschitz.stability import largest_stable_rate

New = Callable[[list[torch.Tensor], float], torch.optim.Optimizer]


def shrinks(new: New, rate: float, curvature: float = 3.0, steps: int = 2000) -> bool:
    theta = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = new([theta], rate)
    for _ in range(steps):
        theta.grad = curvature * theta.detach()
        optimizer.step()
    return abs(theta.item()) < 1


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 1.0])
def test_sgd_is_stable_just_below_and_not_just_above(momentum: float, nesterov: bool, weight_decay: float) -> None:
    if nesterov and not momentum:
        pytest.skip("torch has no Nesterov step without momentum")
    options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    edge = largest_stable_rate(3.0, **options)  # type: ignore[arg-type]

    def new(parameters: list[torch.Tensor], rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=rate, **options)  # type: ignore[arg-type]

    assert shrinks(new, 0.99 * edge)
    assert not shrinks(new, 1.01 * edge)


@pytest.mark.parametrize("decay", [0.0, 1e-3], ids=["no decay", "decoupled decay"])
def test_adam_is_stable_below_the_edge_of_its_preconditioned_step(decay: float) -> None:
    """So large an ε is a preconditioner that stays what it is."""
    edge = largest_stable_rate(3.0, momentum=0.9, dampening=0.9, preconditioner=1e60)

    def new(parameters: list[torch.Tensor], rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=rate, eps=1e60, weight_decay=decay / rate)

    assert shrinks(new, 0.98 * edge, steps=1000)
    assert not shrinks(new, 1.02 * edge, steps=100)


def test_decoupled_decay_without_momentum_is_decay_in_the_gradient() -> None:
    """θ ← (1 − ηw) θ − ηλθ is one step on λ + w."""
    edge = largest_stable_rate(3.0, weight_decay=0.5)
    factor = 1 - edge * 0.5 - edge * 3.0
    assert factor == pytest.approx(-1)


def test_an_optimizer_is_described_by_what_was_set() -> None:
    parameters = [torch.zeros(1)]
    assert described(torch.optim.SGD(parameters, lr=0.3)) == "SGD"
    assert described(torch.optim.AdamW(parameters, weight_decay=0.1)) == "AdamW (weight_decay=0.1)"
    assert described("my own") == "my own"
