"""Schedules are checked as whole sequences; rescaling by its laws; `attach` through a real optimizer."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from excite.errors import InputError
from excite.schedules import SCHEDULES, Schedule, attach, constant, cosine, exponential, rescale, step

GOLDEN: dict[str, tuple[Schedule, list[float]]] = {
    "ResNets: at 81 and 122 of 164": (step(0.1, milestones=(81, 122)), [0.1] * 81 + [0.01] * 41 + [0.001] * 42),
    "DenseNet: at 150 and 225 of 300": (step(0.1, milestones=(150, 225)), [0.1] * 150 + [0.01] * 75 + [0.001] * 75),
    "PGD-AT: every 50 of 150": (step(0.1, milestones=range(50, 150, 50)), [0.1] * 50 + [0.01] * 50 + [0.001] * 50),
    "TRADES: at 75 of 75, never reached": (step(0.1, milestones=(75,)), [0.1] * 75),
    "RST: cosine over 200": (
        cosine(0.1, epochs=200),
        [0.1 * 0.5 * (1 + math.cos((e - 1) * math.pi / 200)) for e in range(1, 201)],
    ),
    "exponential": (exponential(0.2, decay=0.5), [0.2, 0.1, 0.05, 0.025, 0.0125]),
    "constant": (constant(0.3), [0.3] * 10),
}
golden = pytest.mark.parametrize(("schedule", "expected"), GOLDEN.values(), ids=GOLDEN.keys())

rates = st.floats(min_value=1e-6, max_value=1e3)
baselines = st.one_of(
    st.builds(constant, rates),
    st.builds(lambda rate, decay: exponential(rate, decay=decay), rates, st.floats(min_value=0.5, max_value=1)),
    st.builds(lambda rate, epochs: cosine(rate, epochs=epochs), rates, st.integers(1, 300)),
    st.builds(
        lambda rate, milestones, factor: step(rate, milestones=sorted(milestones), factor=factor),
        rates,
        st.sets(st.integers(1, 100), max_size=5),
        st.floats(min_value=0.01, max_value=1),
    ),
)


def sgd(rate: float | Tensor = 0.1, *more: float) -> torch.optim.SGD:
    """An optimizer with one parameter group per rate."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": value} for value in (rate, *more)]
    return torch.optim.SGD(groups)


def run(optimizer: torch.optim.Optimizer, scheduler: LRScheduler, epochs: int) -> list[list[float]]:
    """The rates of every group, epoch by epoch."""
    seen = []
    for _ in range(epochs):
        seen.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return seen


@golden
def test_golden_sequence(schedule: Schedule, expected: list[float]) -> None:
    assert [schedule(epoch) for epoch in range(len(expected))] == pytest.approx(expected, rel=1e-12)


@golden
def test_golden_sequence_through_an_optimizer(schedule: Schedule, expected: list[float]) -> None:
    optimizer = sgd()
    rates = run(optimizer, attach(optimizer, schedule), len(expected))
    assert rates == [[schedule(epoch)] for epoch in range(len(expected))]


@golden
def test_golden_sequence_rescaled(schedule: Schedule, expected: list[float]) -> None:
    poe = rescale(schedule, 0.25)
    scaled = [0.25 * rate / expected[0] for rate in expected]
    assert [poe(epoch) for epoch in range(len(expected))] == pytest.approx(scaled, rel=1e-12)


def test_a_milestone_at_the_end_is_felt_just_after_it() -> None:
    schedule = step(0.1, milestones=(75,))
    assert schedule(74) == 0.1
    assert schedule(75) == pytest.approx(0.01)


def test_step_equals_torch() -> None:
    optimizer, other = sgd(), sgd()
    theirs = torch.optim.lr_scheduler.MultiStepLR(other, [81, 122])
    for ours, expected in zip(
        run(optimizer, attach(optimizer, step(0.1, milestones=(81, 122))), 164), run(other, theirs, 164), strict=True
    ):
        assert ours == pytest.approx(expected, rel=1e-12)


def test_a_cosine_ends_at_zero_and_stays_there() -> None:
    schedule = cosine(0.1, epochs=200)
    assert [schedule(epoch) for epoch in (0, 100, 200, 300, 400)] == pytest.approx([0.1, 0.05, 0, 0, 0])


@given(schedule=baselines, first=rates)
def test_rescale_keeps_the_shape_and_never_exceeds_the_first_rate(schedule: Schedule, first: float) -> None:
    poe = rescale(schedule, first)
    assert poe(0) == first
    for epoch in range(120):
        assert 0 <= poe(epoch) <= first
        assert poe(epoch) / first == pytest.approx(schedule(epoch) / schedule(0), rel=1e-12, abs=1e-300)


def test_a_warm_up_is_refused_with_the_cure() -> None:
    def warm_up(epoch: int) -> float:
        return 0.1 * min(epoch + 1, 5) / 5

    with pytest.raises(InputError, match="warm-up"):
        rescale(warm_up, 0.5)


def test_rounding_is_no_rise() -> None:
    """0.1 · 3ᵏ / 3ᵏ is 0.1, give or take the last digit."""
    assert rescale(lambda epoch: 0.1 * 3**epoch / 3**epoch, 0.25, horizon=100)(99) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "past_its_end",
    [lambda epoch: 0.1 * (1 - epoch / 20), lambda epoch: (1 - epoch / 20) ** 0.9, lambda epoch: ([0.1] * 21)[epoch]],
    ids=["negative", "complex", "a table"],
)
def test_horizon_limits_the_check(past_its_end: Schedule) -> None:
    with pytest.raises(InputError, match="horizon=21"):
        rescale(past_its_end, 0.5)
    assert rescale(past_its_end, 0.5, horizon=21)(0) == 0.5


def test_a_late_rise_is_refused_within_the_horizon_only() -> None:
    def late(epoch: int) -> float:
        return 0.1 if epoch < 500 else 0.2

    with pytest.raises(InputError, match="at epoch 500"):
        rescale(late, 0.5)
    assert rescale(late, 0.5, horizon=500)(499) == 0.5


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf])
@pytest.mark.parametrize(
    "build",
    [
        constant,
        lambda rate: step(rate, milestones=(1,)),
        lambda rate: step(0.1, milestones=(1,), factor=rate),
        lambda rate: exponential(rate, decay=0.9),
        lambda rate: exponential(0.1, decay=rate),
        lambda rate: cosine(rate, epochs=10),
        lambda rate: rescale(constant(0.1), rate),
        lambda rate: rescale(lambda _epoch: rate, 0.1),
    ],
)
def test_rates_that_are_not_positive_and_finite_are_refused(build: Callable[[float], Schedule], bad: float) -> None:
    with pytest.raises(InputError):
        build(bad)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_refuses_a_baseline_with_invalid_later_rates(bad: float) -> None:
    with pytest.raises(InputError, match="at epoch 3"):
        rescale(lambda epoch: bad if epoch == 3 else 0.1, 0.1)


@pytest.mark.parametrize("milestones", [(0,), (-3, 5), (20, 10), (10, 10)])
def test_milestones_out_of_order_are_refused(milestones: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="milestones"):
        step(0.1, milestones=milestones)


def test_a_growing_decay_and_an_empty_cosine_are_refused() -> None:
    with pytest.raises(InputError, match="decay"):
        exponential(0.1, decay=1.1)
    with pytest.raises(InputError, match="epochs"):
        cosine(0.1, epochs=0)


def test_the_registry_builds_from_plain_keywords() -> None:
    assert SCHEDULES["constant"](rate=0.1)(5) == 0.1
    assert SCHEDULES["step"](rate=0.1, milestones=[2], factor=0.5)(2) == 0.05
    assert SCHEDULES["exponential"](rate=0.1, decay=0.5)(1) == 0.05
    assert SCHEDULES["cosine"](rate=0.1, epochs=2)(1) == pytest.approx(0.05)


def test_attach_sets_the_first_rate_at_once() -> None:
    optimizer = sgd(0.7)
    scheduler = attach(optimizer, constant(0.2))
    assert isinstance(scheduler, LRScheduler)
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert scheduler.get_last_lr() == [0.2]


def test_parameter_groups_keep_their_ratio() -> None:
    schedule = step(0.4, milestones=(1,), factor=0.5)
    optimizer = sgd(0.2, 0.4, 0.02, 0.0)
    rates = run(optimizer, attach(optimizer, schedule), 2)
    assert rates == [pytest.approx([0.2, 0.4, 0.02, 0.0]), pytest.approx([0.1, 0.2, 0.01, 0.0])]


def test_the_largest_rate_follows_the_schedule() -> None:
    optimizer = sgd(0.01, 0.1)
    rates = run(optimizer, attach(optimizer, step(0.4, milestones=(1,), factor=0.5)), 2)
    assert rates == [pytest.approx([0.04, 0.4]), pytest.approx([0.02, 0.2])]


def test_groups_of_one_rate_all_follow_the_schedule() -> None:
    optimizer = sgd(0.1, 0.1)
    attach(optimizer, constant(0.4))
    assert [group["lr"] for group in optimizer.param_groups] == [0.4, 0.4]
    frozen = sgd(0.0, 0.1)
    attach(frozen, constant(0.4))
    assert [group["lr"] for group in frozen.param_groups] == [0.0, 0.4]


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [(sgd(0.0), "not 0"), (sgd(math.nan), "finite"), (sgd(0.1, math.inf), "finite")],
)
def test_refuses_zero_and_non_finite_rates(optimizer: torch.optim.SGD, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attach(optimizer, constant(0.1))


WRONG: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], str]] = [
    (attach, (sgd(), 0.1), {}, "schedules.constant"),
    (rescale, (0.1, 0.2), {}, "schedules.constant"),
    (constant, ("0.1",), {}, "rate"),
    (step, (0.1,), {"milestones": (1.5,)}, "milestones"),
    (cosine, (0.1,), {"epochs": 2.5}, "epochs"),
    (exponential, (0.1,), {"decay": "half"}, "decay"),
]


@pytest.mark.parametrize(("call", "arguments", "options", "message"), WRONG)
def test_wrong_schedules_are_refused(
    call: Callable[..., object], arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call(*arguments, **options)


def test_refuses_an_invalid_rate_when_it_occurs() -> None:
    optimizer = sgd()
    scheduler = attach(optimizer, lambda epoch: 0.1 if epoch < 3 else math.nan)
    run(optimizer, scheduler, 2)
    optimizer.step()
    with pytest.raises(InputError, match="epoch 3"):
        scheduler.step()


@pytest.mark.parametrize("load_optimizer", ["never", "before attach", "after attach", "after loading"])
@golden
@pytest.mark.parametrize("other", [1.0, 3.0])
def test_a_saved_scheduler_resumes_exactly(
    schedule: Schedule, expected: list[float], load_optimizer: str, other: float
) -> None:
    rates = (other * schedule(0), schedule(0))
    optimizer = sgd(*rates)
    scheduler = attach(optimizer, schedule)
    whole = run(optimizer, scheduler, 5)
    saved = json.dumps(scheduler.state_dict())
    saved_optimizer = optimizer.state_dict()
    whole += run(optimizer, scheduler, len(expected) - 5)

    fresh = sgd(*rates)
    if load_optimizer == "before attach":
        fresh.load_state_dict(saved_optimizer)
    resumed = attach(fresh, schedule)
    if load_optimizer == "after attach":
        fresh.load_state_dict(saved_optimizer)
    resumed.load_state_dict(json.loads(saved))
    if load_optimizer == "after loading":
        fresh.load_state_dict(saved_optimizer)
    assert resumed.last_epoch == 5
    assert run(fresh, resumed, len(expected) - 5) == whole[5:]


def test_a_state_of_other_groups_is_refused() -> None:
    state = attach(sgd(0.1, 0.2), constant(0.1)).state_dict()
    with pytest.raises(InputError, match="groups"):
        attach(sgd(), constant(0.1)).load_state_dict(state)


def test_a_tensor_rate_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.5, dtype=torch.float64)
    optimizer = sgd(rate)
    scheduler = attach(optimizer, step(0.4, milestones=(1,), factor=0.5))
    assert run(optimizer, scheduler, 2) == [[0.4], [0.2]]
    scheduler.load_state_dict(attach(sgd(), constant(0.1)).state_dict())
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.4
