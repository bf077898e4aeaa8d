"""Gradient descent step by step: certified below 1/L, lost above it exactly where the sharpest direction outweighs."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from excite.errors import InputError
from excite.excitation import certify_descent

CURVATURES = torch.tensor([4.0, 1.0, 0.1], dtype=torch.float64)
LARGEST = 4.0  # L


def quadratic(theta: Tensor) -> Tensor:
    return CURVATURES * theta


@pytest.mark.parametrize("multiple", [0.5, 0.99])
def test_below_one_over_l_every_step_is_certified(multiple: float) -> None:
    found = certify_descent(quadratic, torch.ones(3), rate=multiple / LARGEST, steps=60, goal=torch.zeros(3))
    assert found.fraction == 1
    assert found.residuals.max() < 1e-12
    assert (found.slopes <= LARGEST).all()
    assert (np.diff(found.distances) < 0).all()
    assert "every step is certified" in str(found)


@pytest.mark.parametrize("multiple", [1.2, 1.5, 1.9, 2.0])
def test_above_it_a_step_is_certified_where_the_other_directions_outweigh_the_overshoot(multiple: float) -> None:
    rate = multiple / LARGEST
    found = certify_descent(quadratic, torch.ones(3), rate=rate, steps=40, goal=torch.zeros(3))
    shares = rate * CURVATURES
    for k in range(40):
        theta = (1 - shares) ** k
        product = float((shares * (1 - shares) * theta**2).sum())  # uᵀq
        assert found.certified[k] == (product > 0)
    assert found.fraction < 1


@pytest.mark.parametrize(("multiple", "certified"), [(0.9, 1.0), (1.1, 0.0), (1.5, 0.0), (2.0, 0.0)])
def test_in_one_dimension_nothing_beyond_one_over_l_is(multiple: float, certified: float) -> None:
    found = certify_descent(lambda theta: 4 * theta, torch.ones(1), rate=multiple / 4, steps=20, goal=torch.zeros(1))
    assert found.fraction == certified


def network() -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The full-batch gradient of a small tanh network on fixed data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = torch.sin(x.sum(1))
    start = torch.randn(16, generator=generator, dtype=torch.float64)

    def gradient(theta: Tensor) -> Tensor:
        leaf = theta.clone().requires_grad_(True)
        hidden = torch.tanh(x @ leaf[:12].view(3, 4))
        loss = ((hidden @ leaf[12:] - y) ** 2).mean()
        return torch.autograd.grad(loss, leaf)[0]

    return gradient, start


def test_a_network_s_goal_is_where_descent_goes() -> None:
    gradient, start = network()
    found = certify_descent(gradient, start, rate=0.05, steps=100, beyond=1500)
    end = start
    for _ in range(1600):
        end = end - 0.05 * gradient(end)
    assert found.distances[0] == pytest.approx(float((start - end).norm()))
    assert found.certified[-1]


def test_without_a_goal_the_last_step_does_not_end_at_it() -> None:
    assert certify_descent(quadratic, torch.ones(3), rate=0.25 / LARGEST, steps=20).certified.all()


def test_what_cannot_be_certified_is_refused() -> None:
    with pytest.raises(InputError, match="left the finite numbers"):
        certify_descent(quadratic, torch.ones(3), rate=1e9, steps=200)
    with pytest.raises(InputError, match="positive rate"):
        certify_descent(quadratic, torch.ones(3), rate=math.nan, steps=5)
