"""TRADES and RST equal their definitions written out; extreme logits give finite losses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.attacks.geometry import distance
from excite.errors import InputError
from excite.objectives import RST, Trades


def divergence(natural: Tensor, adversarial: Tensor) -> Tensor:
    """KL(natural ‖ adversarial), class by class."""
    p, q = torch.softmax(natural, 1), torch.softmax(adversarial, 1)
    return torch.stack(
        [sum((p[i, c] * (p[i, c] / q[i, c]).log() for c in range(p.shape[1])), p.new_zeros(())) for i in range(len(p))]
    )


def slow_trades_loss(model: nn.Module, x: Tensor, y: Tensor, noise: Tensor, *, beta: float) -> Tensor:
    model.eval()
    x_adv = x + 0.001 * noise
    for _ in range(10):
        x_adv = x_adv.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(divergence(model(x), model(x_adv)).sum(), x_adv)
        x_adv = x_adv.detach() + 0.007 * gradient.sign()
        x_adv = torch.minimum(torch.maximum(x_adv, x - 8 / 255), x + 8 / 255).clamp(0, 1)
    model.train()
    natural, adversarial = model(x), model(x_adv)
    right = torch.stack([torch.softmax(natural, 1)[i, y[i]] for i in range(len(y))])
    return -right.log().mean() + beta * divergence(natural, adversarial).mean()


@pytest.mark.parametrize("beta", [6.0, 0.5])
def test_equals_its_definition(
    new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], assert_same_step: Any, beta: float
) -> None:
    model, twin = new_network(), new_network()
    noise = torch.randn(batch[0].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    loss = Trades(beta=beta)(model, *batch, torch.Generator().manual_seed(3))
    assert_same_step(model, loss, twin, slow_trades_loss(twin, *batch, noise, beta=beta))


def test_a_generator_left_out_is_torchs_own(new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(3)
    first = Trades()(new_network(), *batch)
    assert Trades()(new_network(), *batch) != first
    torch.manual_seed(3)
    assert Trades()(new_network(), *batch) == first


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_extreme_logits_give_finite_losses_and_gradients(precision: torch.dtype, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(16, 1, 4, 4, generator=generator), torch.randint(0, 5, (16,), generator=generator)
    linear = nn.Linear(16, 5)
    model = nn.Sequential(nn.Flatten(), linear)
    with torch.no_grad():
        linear.weight.copy_(size * torch.randn(5, 16, generator=generator).sign())
    assert model(x).abs().max() >= size
    with torch.autocast("cpu", dtype=precision, enabled=precision is torch.bfloat16):
        loss = Trades()(model, x, y, generator)
    assert loss.dtype is torch.float32
    assert torch.isfinite(loss)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), eps=st.floats(0, 1), ratio=st.floats(0, 4), steps=st.integers(0, 4))
def test_stays_in_the_ball(*, seed: int, eps: float, ratio: float, steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.rand(5, 1, 3, 3, generator=generator).round(decimals=1), torch.zeros(5, dtype=torch.long)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    x_adv = Trades(eps=eps, step=eps * ratio, steps=steps).perturb(model, x, y, generator)
    assert distance(x_adv, x, norm="linf").max() <= eps + 1e-7
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1


@pytest.mark.parametrize("beta", [-1.0, float("inf"), float("nan")])
def test_a_negative_or_non_finite_beta_is_refused(beta: float) -> None:
    with pytest.raises(InputError, match="beta"):
        Trades(beta=beta)


def test_rst_at_weight_one_is_trades(
    new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], assert_same_step: Any
) -> None:
    model, twin = new_network(), new_network()
    loss = RST()(model, *batch, torch.Generator().manual_seed(3))
    assert_same_step(model, loss, twin, Trades()(twin, *batch, torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("size", [10, 9])
@pytest.mark.parametrize("weight", [0.0, 0.3, 2.5])
def test_rst_equals_the_weighted_mean_written_out(
    new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], assert_same_step: Any, weight: float, size: int
) -> None:
    model, twin = new_network(), new_network()
    x, y = batch[0][:size], batch[1][:size]
    loss = RST(unlabelled_weight=weight, beta=2.0)(model, x, y, torch.Generator().manual_seed(3))
    x_adv = Trades().perturb(twin, x, y, torch.Generator().manual_seed(3))
    natural, adversarial = twin(x), twin(x_adv)
    total = torch.zeros((), dtype=torch.float64)
    labelled = 5
    for i in range(size):
        p, q = natural[i].softmax(0), adversarial[i].softmax(0)
        share = cross_entropy(natural[i], y[i]) + 2.0 * (p * (p.log() - q.log())).sum()
        total = total + (share if i < labelled else weight * share)
    assert_same_step(model, loss, twin, total / (labelled + weight * (size - labelled)))


def test_a_negative_rst_weight_is_refused() -> None:
    with pytest.raises(InputError, match="unlabelled_weight"):
        RST(unlabelled_weight=-1.0)
