"""A rescaled scheduler gives the rates of the unrescaled one times one factor, to the last step and after resuming."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as of_torch
from torch.optim.lr_scheduler import LRScheduler

from excite import rescale_scheduler, schedules
from excite.errors import InputError, UnidentifiedError
from excite.lipschitz import LipschitzEstimate

L = 8.0
ESTIMATE = LipschitzEstimate(L, (L, L), "stated", True, "a test")
Build = Callable[[Optimizer], LRScheduler]

SCHEDULERS: dict[str, Build] = {
    "StepLR": lambda optimizer: of_torch.StepLR(optimizer, 3, 0.5),
    "MultiStepLR": lambda optimizer: of_torch.MultiStepLR(optimizer, [2, 5]),
    "ExponentialLR": lambda optimizer: of_torch.ExponentialLR(optimizer, 0.9),
    "CosineAnnealingLR": lambda optimizer: of_torch.CosineAnnealingLR(optimizer, 12, eta_min=0.001),
    "CosineAnnealingWarmRestarts": lambda optimizer: of_torch.CosineAnnealingWarmRestarts(optimizer, 4, eta_min=0.001),
    "PolynomialLR": lambda optimizer: of_torch.PolynomialLR(optimizer, 12),
    "LinearLR, falling": lambda optimizer: of_torch.LinearLR(optimizer, 1.0, 0.1, 6),
    "LambdaLR": lambda optimizer: of_torch.LambdaLR(optimizer, lambda epoch: 0.5 / (1 + epoch)),
    "MultiplicativeLR": lambda optimizer: of_torch.MultiplicativeLR(optimizer, lambda _epoch: 0.8),
    "SequentialLR": lambda optimizer: of_torch.SequentialLR(
        optimizer,
        [of_torch.ConstantLR(optimizer, 1.0, 1), of_torch.CosineAnnealingLR(optimizer, 8, eta_min=0.0001)],
        [4],
    ),
    "ChainedScheduler": lambda optimizer: of_torch.ChainedScheduler(
        [of_torch.ExponentialLR(optimizer, 0.9), of_torch.StepLR(optimizer, 4)], optimizer=optimizer
    ),
}
each = pytest.mark.parametrize("build", SCHEDULERS.values(), ids=SCHEDULERS.keys())


def optimizer_of(*rates: float | Tensor, kind: type[Optimizer] = SGD) -> Optimizer:
    return kind([{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])  # type: ignore[call-arg]


def run(scheduler: LRScheduler, steps: int) -> Tensor:
    """The rates of every group, step by step."""
    seen = []
    for _ in range(steps):
        seen.append([float(group["lr"]) for group in scheduler.optimizer.param_groups])
        scheduler.optimizer.step()
        scheduler.step()
    return torch.tensor(seen, dtype=torch.float64)


@each
@pytest.mark.parametrize("multiple", [1, 2])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_every_group_is_multiplied_by_one_factor(build: Build, multiple: float, kind: type[Optimizer]) -> None:
    rates = (0.1, 0.4, 0.01)
    plain = run(build(optimizer_of(*rates, kind=kind)), 12)
    scheduler = build(optimizer_of(*rates, kind=kind))
    assert rescale_scheduler(scheduler, ESTIMATE, multiple) is scheduler
    rescaled = run(scheduler, 12)
    factor = multiple / L / plain[0].max()
    torch.testing.assert_close(rescaled, plain * factor, rtol=1e-6, atol=1e-12)
    assert rescaled.max() == pytest.approx(multiple / L)


@each
def test_saved_states_resume_without_rescaling_again(build: Build) -> None:
    scheduler = rescale_scheduler(build(optimizer_of(0.1, 0.3)), ESTIMATE)
    run(scheduler, 5)
    saved = scheduler.state_dict(), scheduler.optimizer.state_dict()
    whole = run(scheduler, 6)
    resumed = build(optimizer_of(0.1, 0.3))
    resumed.optimizer.load_state_dict(saved[1])
    resumed.load_state_dict(saved[0])
    assert torch.equal(run(resumed, 6), whole)


@each
def test_rescaling_twice_equals_once(build: Build) -> None:
    once = rescale_scheduler(build(optimizer_of(0.1, 0.3)), ESTIMATE)
    twice = rescale_scheduler(rescale_scheduler(build(optimizer_of(0.1, 0.3)), ESTIMATE), ESTIMATE)
    torch.testing.assert_close(run(twice, 12), run(once, 12), rtol=1e-9, atol=0)


def test_a_tensor_rate_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.5)
    optimizer = optimizer_of(rate)
    rescale_scheduler(of_torch.ExponentialLR(optimizer, 0.5), ESTIMATE)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 1 / L


def warm_up(optimizer: Optimizer) -> LRScheduler:
    return of_torch.SequentialLR(
        optimizer, [of_torch.LinearLR(optimizer, 0.1, 1.0, 3), of_torch.CosineAnnealingLR(optimizer, 10)], [3]
    )


REFUSED: dict[str, tuple[Build, str]] = {
    "OneCycleLR": (lambda optimizer: of_torch.OneCycleLR(optimizer, 1.0, 10), "largest rate"),
    "CyclicLR": (lambda optimizer: of_torch.CyclicLR(optimizer, 0.1, 1.0), "warm-up"),
    "ReduceLROnPlateau": (of_torch.ReduceLROnPlateau, "lr=estimate"),
    "SequentialLR with a warm-up": (warm_up, "warm-up"),
    "LinearLR, rising": (of_torch.LinearLR, "warm-up"),
    "LambdaLR that rises": (lambda optimizer: of_torch.LambdaLR(optimizer, lambda e: min(1.0, e + 0.5)), "at step 1"),
    "SWALR, whose end is in the groups": (
        lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, 0.05, anneal_epochs=2),
        "absolute",
    ),
    "a schedule of ours": (
        lambda optimizer: schedules.attach(optimizer, schedules.constant(0.1)),
        r"schedules\.rescale",
    ),
}


class Floored(LRScheduler):
    """Somebody's own scheduler, with an absolute floor."""

    def get_lr(self) -> list[float | Tensor]:
        return [max(base * 0.5**self.last_epoch, 0.01) for base in self.base_lrs]


@pytest.mark.parametrize(("build", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_schedulers_that_cannot_be_rescaled(build: Build, reason: str) -> None:
    optimizer = optimizer_of(0.1)
    scheduler = build(optimizer)
    before = dict(optimizer.param_groups[0])
    with pytest.raises(InputError, match=reason):
        rescale_scheduler(scheduler, ESTIMATE)
    assert optimizer.param_groups[0] == before


def test_no_horizon_advice_for_a_warm_up() -> None:
    warm_up = of_torch.LinearLR(SGD([torch.zeros(1, requires_grad=True)], lr=0.1), 0.1)
    with pytest.raises(InputError, match="warm-up") as refused:
        rescale_scheduler(warm_up, ESTIMATE)
    assert "horizon" not in str(refused.value)


def test_unidentified_l_needs_allow_unidentified() -> None:
    vague = LipschitzEstimate(L, (0.0, L), "edge", False, "a guess")
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler = of_torch.StepLR(optimizer, 3)
    with pytest.raises(UnidentifiedError, match="allow_unidentified"):
        rescale_scheduler(scheduler, vague)
    assert optimizer.param_groups[0]["lr"] == 0.1
    rescale_scheduler(scheduler, vague, allow_unidentified=True)
    assert optimizer.param_groups[0]["lr"] == 1 / L


def test_a_stated_l_is_used() -> None:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    rescale_scheduler(of_torch.StepLR(optimizer, 3), LipschitzEstimate(L, (L, L), "stated", False, "a paper"))
    assert optimizer.param_groups[0]["lr"] == 1 / L


@pytest.mark.parametrize(
    "past_its_end",
    [lambda step: (1 - step / 20) ** 0.9, lambda step: ([1.0] * 21)[step], lambda step: 1.0 if step <= 20 else 2.0],
    ids=["complex", "a table", "rising"],
)
def test_horizon_limits_the_check(past_its_end: Callable[[int], float]) -> None:
    with pytest.raises(InputError, match="horizon=21"):
        rescale_scheduler(of_torch.LambdaLR(optimizer_of(0.1), past_its_end), ESTIMATE)
    optimizer = optimizer_of(0.1)
    rescale_scheduler(of_torch.LambdaLR(optimizer, past_its_end), ESTIMATE, horizon=21)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1 / L)


def test_an_absolute_floor_is_refused() -> None:
    with pytest.raises(InputError, match="Floored"):
        rescale_scheduler(Floored(optimizer_of(0.1)), ESTIMATE)


def test_refuses_a_scheduler_that_has_stepped() -> None:
    scheduler = of_torch.StepLR(optimizer_of(0.1), 3)
    run(scheduler, 2)
    with pytest.raises(InputError, match="2 times"):
        rescale_scheduler(scheduler, ESTIMATE)


def test_a_first_rate_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="above 0"):
        rescale_scheduler(of_torch.StepLR(optimizer_of(0.0), 3), ESTIMATE)
