import math
from collections.abc import Callable, Iterator
from itertools import count, repeat
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from excite.errors import DivergedError, InputError
from excite.lipschitz import LipschitzEstimate
from excite.lipschitz.edge import find_edge
from excite.lipschitz.optimizers import largest_stable_rate

STEPS = 120
LossesAt = Callable[[float, int], Iterator[float]]


def quadratic(curvatures: list[float], optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> LossesAt:
    """Any torch optimizer on ½ Σ λᵢ θᵢ² from θ = ±1."""

    def losses_at(rate: float, draw: int) -> Iterator[float]:
        theta = torch.full((len(curvatures),), (-1.0) ** draw, dtype=torch.float64, requires_grad=True)
        steps = optimizer([theta], lr=rate)
        while True:
            loss = 0.5 * (torch.tensor(curvatures, dtype=torch.float64) * theta**2).sum()
            steps.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()
            yield loss.item()

    return losses_at


def descent(*curvatures: float) -> LossesAt:
    """The same for plain gradient descent, in closed form."""

    def losses_at(rate: float, _draw: int) -> Iterator[float]:
        for number in range(STEPS):
            yield 0.5 * sum(c * (1 - rate * c) ** (2 * number) for c in curvatures)

    return losses_at


@settings(max_examples=15)
@given(st.floats(0.05, 500), st.floats(1e-3, 10))
def test_on_a_quadratic_it_is_the_largest_curvature(largest: float, start: float) -> None:
    estimate = find_edge(descent(largest, largest / 3), budget=40 * STEPS, steps=STEPS, start=start)
    low, high = estimate.interval
    assert estimate.identified
    assert estimate.details["stopped"] == "narrow"
    assert low <= largest <= high <= 2.6 * low  # most of it for what short runs cannot know of whole trainings
    assert estimate.constant == pytest.approx(largest, rel=0.1)


@pytest.mark.parametrize(
    ("optimizer", "theory"),
    [
        (lambda p, lr: torch.optim.SGD(p, lr=lr), largest_stable_rate(4.0)),
        (lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.5), 2 * 1.5 / 4),
        (lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), 2 * 1.9 / 4),
        (
            lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
            largest_stable_rate(4.0, momentum=0.9, nesterov=True),
        ),
        (lambda p, lr: torch.optim.SGD(p, lr=lr, weight_decay=2.0), largest_stable_rate(4.0, weight_decay=2.0)),
        (  # so large an ε is a preconditioner that stays what it is
            lambda p, lr: torch.optim.Adam(p, lr=lr, betas=(0.3, 0.999), eps=1e30),
            largest_stable_rate(4.0, momentum=0.3, dampening=0.3, preconditioner=1e30),
        ),
        (lambda p, lr: torch.optim.RMSprop(p, lr=lr, eps=1e6), largest_stable_rate(4.0, preconditioner=1e6)),
    ],
    ids=["sgd", "heavy ball 0.5", "heavy ball 0.9", "nesterov", "weight decay", "adam", "rmsprop"],
)
def test_it_measures_the_edge_of_any_optimizer(optimizer: Callable[..., torch.optim.Optimizer], theory: float) -> None:
    estimate = find_edge(quadratic([4.0], optimizer), budget=60 * STEPS, steps=STEPS, start=theory / 3, width=1.2)
    assert estimate.learning_rate(2) == pytest.approx(theory, rel=0.04)


def test_it_says_for_which_optimizer_it_holds() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
    estimate = find_edge(descent(4.0), budget=8 * STEPS, optimizer=optimizer)
    assert estimate.details["optimizer"] == "SGD (momentum=0.9)"
    assert "with SGD (momentum=0.9)" in str(estimate)


def stops_improving(share: float) -> LossesAt:
    """A batch-norm network never blows up: past its edge, here 0.9, it only comes down by `share` of what it could."""

    def losses_at(rate: float, _draw: int) -> Iterator[float]:
        way = 0.7 if rate <= 0.9 else 0.7 * share
        for number in count():
            yield 2.3 - way * (1 - math.exp(-5 * number / STEPS))

    return losses_at


@pytest.mark.parametrize("share", [0.03, 0.6])
@pytest.mark.parametrize("start", [0.02, 0.1, 3.0])
def test_a_run_that_only_stops_improving_does_not_end_well(share: float, start: float) -> None:
    estimate = find_edge(stops_improving(share), budget=30 * STEPS, steps=STEPS, start=start)
    assert estimate.learning_rate(2) == pytest.approx(0.9, rel=0.1)
    assert estimate.identified


def test_a_rate_that_is_merely_slow_is_not_held_against() -> None:
    def plateau_first(rate: float, _draw: int) -> Iterator[float]:
        for number in count():
            progress = max(rate * number - 20, 0) / 20  # nothing at all, for a while
            yield 2.3 * math.exp(-progress) if rate < 2 else 2.4

    estimate = find_edge(plateau_first, budget=30 * STEPS, steps=STEPS, start=0.01)
    assert estimate.learning_rate(2) == pytest.approx(2, rel=0.15)


def test_the_budget_is_kept_and_steps_that_were_not_taken_are_not_counted() -> None:
    taken = []

    def counted(rate: float, draw: int) -> Iterator[float]:
        for loss in quadratic([100.0])(rate, draw):
            taken.append(rate)
            yield loss

    estimate = find_edge(counted, budget=4 * STEPS, steps=STEPS, width=1.2)
    assert estimate.details["spent"] == len(taken) == sum(estimate.details["taken"]) <= 4 * STEPS
    assert len(estimate.details["rates"]) > 4  # those that blow up are soon over
    assert taken.count(0.1) < STEPS / 5
    assert estimate.details["stopped"] == "budget"
    assert "the budget was spent" in str(estimate)


def test_a_run_that_is_left_far_behind_is_not_trained_to_its_end() -> None:
    def dies(rate: float, _draw: int) -> Iterator[float]:
        for number in count():
            yield 2.3 * math.exp(-number / 30) if rate < 0.5 else 2.3

    details = find_edge(dies, budget=10 * STEPS, steps=STEPS).details
    cut_short = [taken for taken, well in zip(details["taken"], details["ended_well"], strict=True) if not well]
    assert max(cut_short) == 0.75 * STEPS
    assert min(cut_short) < 0.5 * STEPS  # far above the edge


def test_a_run_that_was_over_early_sends_nobody_below_the_start() -> None:
    def falls(rate: float, _draw: int) -> Iterator[float]:
        for number in count():
            yield 2.3 * math.exp(-rate * number) if rate < 2 else 2.4

    assert min(find_edge(falls, budget=8 * STEPS, steps=STEPS).details["rates"]) == 0.1


def test_the_details_hold_what_a_plot_needs() -> None:
    details = find_edge(descent(4.0), budget=8 * STEPS).details
    runs = {len(details[key]) for key in ("rates", "ended_well", "initial", "final", "taken")}
    assert len(runs) == 1
    rates, survival = zip(*details["curve"], strict=True)
    assert rates[0] < min(details["rates"])
    assert rates[-1] > max(details["rates"])
    assert list(survival) == sorted(survival, reverse=True)
    assert details["careful_rate"] < details["threshold"]


def test_same_runs_same_estimate_and_back_from_json() -> None:
    first, second = (find_edge(descent(3.0), budget=8 * STEPS) for _ in range(2))
    assert first == second == LipschitzEstimate.from_json(first.to_json())


def test_no_edge_found_is_said() -> None:
    estimate = find_edge(descent(1e-9, 0.001), budget=3 * STEPS, steps=STEPS)
    assert not estimate.identified
    assert "only an upper bound" in str(estimate)


def test_a_lucky_run_above_all_others_is_no_upper_bound() -> None:
    """One draw survives whatever the rate; the others, from 0.5 on, do not."""

    def losses_at(rate: float, draw: int) -> Iterator[float]:
        for number in count():
            yield 2.3 * math.exp(-number / 30) if rate < 0.5 or draw == 4 else 2.3

    estimate = find_edge(losses_at, budget=6 * STEPS, steps=STEPS, start=0.45)
    assert not all(estimate.details["ended_well"])
    assert estimate.interval[0] > 0
    assert "upper bound" not in str(estimate)


def test_too_few_runs_are_said() -> None:
    estimate = find_edge(stops_improving(0.6), budget=4 * STEPS, steps=STEPS)
    assert not estimate.identified
    assert "too few to tell: raise the budget" in str(estimate)
    assert estimate.interval[0] < 2 / 0.9 < estimate.interval[1]


def test_runs_too_short_to_learn_are_said() -> None:
    def plateau(rate: float, _draw: int) -> Iterator[float]:
        yield 2.3
        yield from repeat(2.28 if rate <= 0.3 else 2.3)

    estimate = find_edge(plateau, budget=15 * STEPS, steps=STEPS)
    assert not estimate.identified
    assert "make the short runs longer with steps (in an experiment lipschitz.steps)" in str(estimate)


@pytest.mark.parametrize(("steps", "down", "enough"), [(50, 0.5, False), (100, 0.5, True), (100, 0.3, False)])
def test_the_first_few_steps_of_a_long_training_pin_nothing_down(steps: int, down: float, enough: bool) -> None:
    """A fifth of the loss after 50 steps tells less about a training than after 100; an eighth is too little there."""

    def falls(rate: float, _draw: int) -> Iterator[float]:
        for number in count():
            yield (2.4 - down * min(number / (0.75 * steps), 1)) if rate <= 0.3 else 2.4

    estimate = find_edge(falls, budget=20 * steps, steps=steps)
    assert estimate.interval[0] < 2 / 0.3 < estimate.interval[1]
    assert estimate.identified == enough
    assert (f"at best {down / 2.4:.0%} of the loss" in str(estimate)) != enough


def test_the_careful_rate_also_holds_at_the_lower_end_of_the_interval() -> None:
    estimate = find_edge(descent(4.0), budget=8 * STEPS)
    assert estimate.details["careful_rate"] < 2 / estimate.interval[1]


@pytest.mark.parametrize(
    "slope",  # 0.1 is usual
    [pytest.param(0.02, marks=pytest.mark.slow), pytest.param(0.1, marks=pytest.mark.slow), 0.2],
)
def test_of_whole_trainings_95_percent_survive_the_careful_rate(slope: float) -> None:
    """Searches on 20 known curves; the edge of whole trainings is off that of short ones by 0.2 e-folds, as it says."""
    rng = np.random.default_rng(0)

    def search(edge: float) -> LipschitzEstimate:
        def losses_at(rate: float, _draw: int) -> Iterator[float]:
            well = rng.random() < 1 / (1 + (rate / edge) ** (1 / slope))
            for number in count():
                yield 2.3 * (1 - 0.9 * min(number / 40, 1)) if well else 2.3 * (1 + number)

        return find_edge(losses_at, budget=8 * 40, steps=40)

    edges = 0.1 * np.exp(rng.uniform(-3, 3, 20))
    careful = np.array([search(edge).details["careful_rate"] for edge in edges])
    whole = edges * np.exp(0.2 * rng.standard_normal((1000, 20)))
    assert np.mean(1 / (1 + (careful / whole) ** (1 / slope))) > 0.95


def test_where_nothing_is_learned_at_first_it_looks_below() -> None:
    """A plain ResNet at twenty times its best rate: dead, tossed about, and now and then a little better by luck."""

    def losses_at(rate: float, draw: int) -> Iterator[float]:
        for number in count():
            if rate <= 0.03:
                yield 2.3 - min(rate / 0.03, 1) * min(number / STEPS, 1)
            else:
                yield 2.3 - 0.02 * (draw % 2) * min(number / 10, 1)

    estimate = find_edge(losses_at, budget=15 * STEPS, steps=STEPS)
    assert estimate.identified
    assert estimate.interval[0] < 2 / 0.03 < estimate.interval[1]


def test_nothing_converges() -> None:
    def hopeless(_rate: float, _draw: int) -> Iterator[float]:
        yield 2.3
        yield from repeat(2.4)

    with pytest.raises(DivergedError, match=r"At none of the rates .*smaller rate, or make the short runs longer"):
        find_edge(hopeless, budget=4 * STEPS, steps=STEPS)


def test_losses_below_zero_are_losses_too() -> None:
    def shifted(rate: float, draw: int) -> Iterator[float]:
        return (loss - 5.0 for loss in descent(4.0)(rate, draw))

    assert find_edge(shifted, budget=20 * STEPS, steps=STEPS).constant == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(
    ("losses", "options", "cure"),
    [
        ([2.3] * 500, {"budget": 10}, r"budget of 10 steps does not pay for a single run of 20.*Raise it, to 160"),
        ([2.3] * 500, {"budget": 90, "steps": 100}, r"budget of 90 .* single run of 100.*make the runs shorter"),
        ([2.3] * 500, {"budget": 900, "steps": 0}, r"steps=0 is no training"),
        ([math.nan] * 500, {"budget": 900}, r"The first loss is nan, before any step.*Check the data"),
        ([], {"budget": 900}, r"there came 0 losses, and a short training takes 112.*Yield a loss per step"),
        ([2.3] * 30, {"budget": 900}, r"there came 30 losses.*or pass steps=30"),
        ([2.3] * 500, {"budget": 900, "start": 0.0}, r"start=0.0 is no rate.*start=0.1"),
        ([2.3] * 500, {"budget": 900, "start": math.inf}, r"start=inf is no rate"),
        ([2.3] * 500, {"budget": 900, "start": -0.1}, r"start=-0.1 is no rate"),
        ([2.3] * 500, {"budget": 900, "width": 1.0}, r"width=1.0 is too narrow.*1.2 or more"),
        ([2.3] * 500, {"budget": 900, "width": math.nan}, r"width=nan is too narrow"),
    ],
)
def test_what_cannot_work_is_refused_with_a_cure(losses: list[float], options: dict[str, float], cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        find_edge(lambda _rate, _draw: iter(losses), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [0.3, None, [(2.3, 0.9)] * 500, [torch.ones(3)] * 500])
def test_losses_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"loss of each step: `yield loss|must be one number"):
        find_edge(lambda _rate, _draw: given, budget=900)


def test_a_loss_may_begin_at_zero() -> None:
    def losses_at(rate: float, _draw: int) -> Iterator[float]:
        theta = 0.0
        while True:
            yield 2 * (theta - 1) ** 2 - 2
            theta -= rate * 4 * (theta - 1)

    low, high = find_edge(losses_at, budget=8 * STEPS).interval
    assert low < 4.0 < high
