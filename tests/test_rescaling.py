"""A rescaled scheduler gives the rates of the unrescaled one times one factor, to the last step and after resuming."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as of_torch
from torch.optim.lr_scheduler import LRScheduler

from excite import rescale_scheduler, schedules
from excite.errors import InputError, UnidentifiedError
from excite.lipschitz import LipschitzEstimate
from excite.rescaling import shape_of

L = 8.0
ESTIMATE = LipschitzEstimate(L, (L, L), "stated", True, "a test")
Build = Callable[[Optimizer], LRScheduler]


def warm_up(optimizer: Optimizer) -> LRScheduler:
    return of_torch.SequentialLR(
        optimizer, [of_torch.LinearLR(optimizer, 0.25, 1.0, 3), of_torch.CosineAnnealingLR(optimizer, 10)], [3]
    )


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
    "LinearLR, rising": of_torch.LinearLR,
    "SequentialLR with a warm-up": warm_up,
    "LambdaLR with a warm-up from 0": lambda optimizer: of_torch.LambdaLR(
        optimizer, lambda step: min(step / 3, 3 / max(step, 1))
    ),
    "OneCycleLR": lambda optimizer: of_torch.OneCycleLR(
        optimizer, [group["lr"] for group in optimizer.param_groups], 13, cycle_momentum=False
    ),
    "CyclicLR": lambda optimizer: of_torch.CyclicLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        [3 * group["lr"] for group in optimizer.param_groups],
        step_size_up=4,
        cycle_momentum=False,
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
    factor = multiple / L / plain.max()
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


def cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def of_hugging_face(name: str, **options: Any) -> Build:
    def build(optimizer: Optimizer) -> LRScheduler:
        return getattr(pytest.importorskip("transformers"), name)(optimizer, **options)  # type: ignore[no-any-return]

    return build


RISE, FALL = [0, 1 / 4, 1 / 2, 3 / 4], range(8)
WARM_UPS: dict[str, tuple[Build, list[float]]] = {
    "SequentialLR": (warm_up, [1 / 4, 1 / 2, 3 / 4, *(cosine(step / 10) for step in range(9))]),
    "OneCycleLR": (
        lambda optimizer: of_torch.OneCycleLR(
            optimizer, 0.7, 13, pct_start=4 / 13, anneal_strategy="linear", div_factor=4, cycle_momentum=False
        ),
        [1 / 4, 1 / 2, 3 / 4, *(1 - step / 9 * (1 - 1 / 4e4) for step in range(9))],
    ),
    "Hugging Face, linear": (
        of_hugging_face("get_linear_schedule_with_warmup", num_warmup_steps=4, num_training_steps=12),
        [*RISE, *(1 - step / 8 for step in FALL)],
    ),
    "Hugging Face, cosine": (
        of_hugging_face("get_cosine_schedule_with_warmup", num_warmup_steps=4, num_training_steps=12),
        [*RISE, *(cosine(step / 8) for step in FALL)],
    ),
    "Hugging Face, constant": (
        of_hugging_face("get_constant_schedule_with_warmup", num_warmup_steps=4),
        [*RISE, *(1 for _ in FALL)],
    ),
}


@pytest.mark.parametrize(("build", "shape"), WARM_UPS.values(), ids=WARM_UPS.keys())
@pytest.mark.parametrize("multiple", [1, 2])
def test_the_peak_of_a_warm_up_is_rescaled(build: Build, shape: list[float], multiple: float) -> None:
    scheduler = rescale_scheduler(build(optimizer_of(0.1)), ESTIMATE, multiple)
    assert run(scheduler, 12).flatten().tolist() == pytest.approx([multiple / L * rate for rate in shape], abs=1e-9)


def test_the_starting_rate_of_a_plateau_is_rescaled() -> None:
    optimizer = optimizer_of(0.1, 0.4)
    scheduler = of_torch.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, min_lr=0.08)
    rescale_scheduler(scheduler, ESTIMATE)
    rates = []
    for loss in (3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0):
        scheduler.step(loss)
        rates.append([group["lr"] * L for group in optimizer.param_groups])
    assert rates == [*[[0.25, 1.0]] * 3, *[[0.2, 0.5]] * 2, *[[0.2, 0.25]] * 2, [0.2, 0.2]]


def test_a_rise_after_a_long_low_start_belongs_to_the_shape_of_a_training() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = of_torch.LambdaLR(optimizer, lambda step: 0.1 if step < 1500 else 1.0)
    shape = shape_of(scheduler, 2000)
    assert (min(shape), max(shape)) == pytest.approx((0.1, 1.0))


def test_a_long_warm_up_is_followed_to_its_peak() -> None:
    scheduler = of_torch.LambdaLR(optimizer_of(0.1), lambda step: min(step / 3000, 1.0))
    rescale_scheduler(scheduler, ESTIMATE)
    assert scheduler.base_lrs == pytest.approx([1 / L])


REFUSED: dict[str, tuple[Build, str]] = {
    "a rise without end": (lambda optimizer: of_torch.MultiplicativeLR(optimizer, lambda _step: 2.0), "horizon"),
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
    "past_its_end", [lambda step: (1 - step / 20) ** 0.9, lambda step: ([1.0] * 21)[step]], ids=["complex", "a table"]
)
def test_a_schedule_may_end(past_its_end: Callable[[int], float]) -> None:
    optimizer = optimizer_of(0.1)
    rescale_scheduler(of_torch.LambdaLR(optimizer, past_its_end), ESTIMATE)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1 / L)


def test_what_rises_after_the_horizon_does_not_count() -> None:
    optimizer = optimizer_of(0.1)
    rescale_scheduler(of_torch.LambdaLR(optimizer, lambda step: 1.0 if step <= 20 else 2.0), ESTIMATE, horizon=21)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1 / L)


def test_an_absolute_floor_is_refused() -> None:
    with pytest.raises(InputError, match="Floored"):
        rescale_scheduler(Floored(optimizer_of(0.1)), ESTIMATE)


def test_refuses_a_scheduler_that_has_stepped() -> None:
    scheduler = of_torch.StepLR(optimizer_of(0.1), 3)
    run(scheduler, 2)
    with pytest.raises(InputError, match="2 times"):
        rescale_scheduler(scheduler, ESTIMATE)


def test_rates_of_zero_are_refused() -> None:
    with pytest.raises(InputError, match="above 0"):
        rescale_scheduler(of_torch.StepLR(optimizer_of(0.0), 3), ESTIMATE)
