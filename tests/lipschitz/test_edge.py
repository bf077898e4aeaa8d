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
from excite.lipschitz.dose_response import DRIFT, DoseResponse
from excite.lipschitz.edge import find_edge
from tests.lipschitz.stability import largest_stable_rate

STEPS = 120
LossesAt = Callable[[float, int, int], Iterator[float]]


def quadratic(curvatures: list[float], optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> LossesAt:
    """Any torch optimizer on ½ Σ λᵢ θᵢ² from θ = ±1."""

    def losses_at(rate: float, draw: int, _steps: int) -> Iterator[float]:
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

    def losses_at(rate: float, _draw: int, _steps: int) -> Iterator[float]:
        for number in range(STEPS):
            yield 0.5 * sum(c * (1 - rate * c) ** (2 * number) for c in curvatures)

    return losses_at


def edge_of(estimate: LipschitzEstimate) -> float:
    """The rate at which half of the short runs converge: what a quadratic determines exactly."""
    return float(estimate.details["threshold"])


@settings(max_examples=4)
@given(st.floats(0.05, 500), st.floats(1e-3, 10))
def test_on_a_quadratic_it_bounds_the_largest_curvature(largest: float, start: float) -> None:
    estimate = find_edge(descent(largest, largest / 3), budget=40 * STEPS, steps=STEPS, start=start)
    assert estimate.identified
    assert edge_of(estimate) == pytest.approx(2 / largest, rel=0.12)
    assert largest < estimate.constant < 4 * largest  # most of it for what short runs cannot know of whole trainings
    assert estimate.interval[1] == estimate.constant
    assert estimate.convergence is not None
    assert estimate.convergence[0] > estimate.convergence[1] > 0.95


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
    estimate = find_edge(quadratic([4.0], optimizer), budget=40 * STEPS, steps=STEPS, start=theory / 3)
    assert edge_of(estimate) == pytest.approx(theory, rel=0.12)


def test_it_says_for_which_optimizer_it_holds() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
    estimate = find_edge(descent(4.0), budget=8 * STEPS, optimizer=optimizer)
    assert estimate.details["optimizer"] == "SGD (momentum=0.9)"
    assert "with SGD (momentum=0.9)" in str(estimate)


def test_rates_for_an_adaptive_optimizer_are_called_upper_ends() -> None:
    assert "upper ends" in str(find_edge(descent(4.0), budget=8 * STEPS, optimizer="AdamW"))
    assert "upper ends" not in str(find_edge(descent(4.0), budget=8 * STEPS, optimizer="SGD"))


def stops_improving(share: float) -> LossesAt:
    """A batch-norm network never blows up: past its edge, here 0.9, it only comes down by `share` of what it could."""

    def losses_at(rate: float, _draw: int, _steps: int) -> Iterator[float]:
        way = 0.7 if rate <= 0.9 else 0.7 * share
        for number in count():
            yield 2.3 - way * (1 - math.exp(-5 * number / STEPS))

    return losses_at


@pytest.mark.parametrize(("share", "start"), [(0.03, 0.1), (0.03, 3.0), (0.6, 0.02), (0.85, 0.1), (0.85, 3.0)])
def test_a_run_that_only_stops_improving_does_not_converge(share: float, start: float) -> None:
    estimate = find_edge(stops_improving(share), budget=30 * STEPS, steps=STEPS, start=start)
    assert edge_of(estimate) == pytest.approx(0.9, rel=0.12)
    assert estimate.identified


def test_a_rate_that_is_merely_slow_is_not_held_against() -> None:
    def plateau_first(rate: float, _draw: int, _steps: int) -> Iterator[float]:
        for number in count():
            progress = max(rate * number - 20, 0) / 20  # nothing at all, for a while
            yield 2.3 * math.exp(-progress) if rate < 2 else 2.4

    estimate = find_edge(plateau_first, budget=30 * STEPS, steps=STEPS, start=0.01)
    assert edge_of(estimate) == pytest.approx(2, rel=0.2)


def test_the_budget_is_kept_and_steps_that_were_not_taken_are_not_counted() -> None:
    taken = []

    def counted(rate: float, draw: int, _steps: int) -> Iterator[float]:
        for loss in quadratic([100.0])(rate, draw, STEPS):
            taken.append(rate)
            yield loss

    estimate = find_edge(counted, budget=4 * STEPS, steps=STEPS)
    assert estimate.details["spent"] == len(taken) == sum(estimate.details["taken"]) <= 4 * STEPS
    assert len(estimate.details["rates"]) > 4  # those that blow up are soon over
    assert taken.count(0.1) < STEPS / 5


def noisy(edge: float) -> LossesAt:
    """Near its edge, it depends on the draw whether a run converges."""

    def losses_at(rate: float, draw: int, _steps: int) -> Iterator[float]:
        luck = np.random.default_rng(draw).normal(0, 0.2)
        for number in count():
            yield 2.3 * math.exp(-number / 30) if math.log(rate / edge) < luck else 2.3

    return losses_at


def test_if_the_budget_does_not_identify_l_it_grows_up_to_the_limit_and_says_so() -> None:
    said: list[str] = []
    few = find_edge(noisy(0.5), budget=4 * STEPS, steps=STEPS)
    more = find_edge(noisy(0.5), budget=4 * STEPS, limit=40 * STEPS, steps=STEPS, say=said.append)
    assert not few.identified
    assert more.identified
    assert 4 * STEPS < more.details["spent"] < 40 * STEPS
    assert said


@pytest.fixture(scope="module")
def noisy_estimate() -> LipschitzEstimate:
    return find_edge(noisy(0.5), budget=40 * STEPS, steps=STEPS)


def curve_of(estimate: LipschitzEstimate, runs: int | None = None) -> DoseResponse:
    return DoseResponse(0.1, estimate.details["rates"][:runs], estimate.details["converged"][:runs])


def test_l_is_the_95_percent_bound_on_2_over_the_rate_at_which_95_percent_of_trainings_converge(
    noisy_estimate: LipschitzEstimate,
) -> None:
    curve = curve_of(noisy_estimate)
    star = curve.rate_for(0.95, 0.05, longer=8)
    assert noisy_estimate.constant == pytest.approx(2 / star)
    assert noisy_estimate.interval[0] == pytest.approx(2 / curve.rate_for(0.95, 0.95, longer=8, rising=True))
    assert noisy_estimate.convergence == pytest.approx(curve.survival([star / 2, star], longer=8))


@pytest.mark.parametrize(("runs", "identified"), [(7, False), (8, True)])
def test_l_is_identified_once_the_threshold_is_known_within_a_factor_2(runs: int, identified: bool) -> None:
    estimate = find_edge(noisy(0.5), budget=runs * STEPS, steps=STEPS)
    low, high = curve_of(estimate).interval()
    assert 1.5 < high / low < 2.5
    assert estimate.identified == (high / low <= 2) == identified


def test_the_search_ends_once_the_threshold_is_known_within_a_factor_1_5(noisy_estimate: LipschitzEstimate) -> None:
    (low, high), (low_before, high_before) = (curve_of(noisy_estimate, runs).interval() for runs in (None, -1))
    assert high / low <= 1.5 < high_before / low_before


def test_an_identified_l_does_not_use_the_limit() -> None:
    assert find_edge(descent(4.0), budget=8 * STEPS, limit=800 * STEPS, steps=STEPS).details["spent"] <= 8 * STEPS


def test_runs_become_longer_until_a_plateau_is_left_behind() -> None:
    def plateau_first(rate: float, _draw: int, _steps: int) -> Iterator[float]:
        for number in count():
            yield 2.3 * math.exp(-max(number - 300, 0) / 50) if rate < 0.4 else 2.3

    estimate = find_edge(plateau_first, budget=8 * 60, limit=8000)
    assert estimate.identified
    assert estimate.details["steps"] > 300
    assert edge_of(estimate) == pytest.approx(0.4, rel=0.3)


def test_a_start_that_learns_enough_sends_no_run_below_it() -> None:
    def falls(rate: float, _draw: int, _steps: int) -> Iterator[float]:
        for number in count():
            yield 2.3 * math.exp(-rate * number) if rate < 2 else 2.4

    assert min(find_edge(falls, budget=8 * STEPS, steps=STEPS).details["rates"]) == 0.1


def test_the_details_hold_what_a_plot_needs() -> None:
    details = find_edge(descent(4.0), budget=8 * STEPS).details
    runs = {len(details[key]) for key in ("rates", "converged", "initial", "final", "taken")}
    assert len(runs) == 1
    rates, survival = zip(*details["curve"], strict=True)
    assert rates[0] < min(details["rates"])
    assert rates[-1] > max(details["rates"])
    assert list(survival) == sorted(survival, reverse=True)


def test_same_runs_same_estimate_and_back_from_json() -> None:
    first, second = (find_edge(descent(3.0), budget=8 * STEPS) for _ in range(2))
    assert first == second == LipschitzEstimate.from_json(first.to_json())


def test_no_edge_found_is_said() -> None:
    estimate = find_edge(descent(1e-9, 0.001), budget=3 * STEPS, steps=STEPS)
    assert not estimate.identified
    assert "converged" in estimate.basis
    assert estimate.interval[0] == 0


def test_a_lucky_run_above_all_others_is_no_upper_bound() -> None:
    """One draw survives whatever the rate; the others, from 0.5 on, do not."""

    def losses_at(rate: float, draw: int, _steps: int) -> Iterator[float]:
        for number in count():
            yield 2.3 * math.exp(-number / 30) if rate < 0.5 or draw == 4 else 2.3

    estimate = find_edge(losses_at, budget=6 * STEPS, steps=STEPS, start=0.45)
    assert not all(estimate.details["converged"])
    assert estimate.interval[0] > 0


def test_too_few_runs_are_said() -> None:
    estimate = find_edge(stops_improving(0.6), budget=4 * STEPS, steps=STEPS)
    assert not estimate.identified
    assert "raise the budget" in str(estimate)
    assert estimate.learning_rate(2) < 0.9


def test_runs_too_short_to_learn_are_said() -> None:
    def plateau(rate: float, _draw: int, _steps: int) -> Iterator[float]:
        yield 2.3
        yield from repeat(2.28 if rate <= 0.3 else 2.3)

    estimate = find_edge(plateau, budget=15 * STEPS, steps=STEPS)
    assert not estimate.identified
    assert "too short" in str(estimate)


@pytest.mark.parametrize("down", [0.6, 0.8])
def test_l_is_identified_only_if_some_run_came_30_percent_down(down: float) -> None:
    def falls(rate: float, _draw: int, _steps: int) -> Iterator[float]:
        for number in count():
            yield (2.4 - down * min(number / (0.75 * STEPS), 1)) if rate <= 0.3 else 2.4

    estimate = find_edge(falls, budget=20 * STEPS, steps=STEPS)
    assert estimate.identified == (down / 2.4 > 0.3)
    assert find_edge(falls, budget=20 * STEPS, steps=STEPS, whole=STEPS).identified  # a training goes no further down


def test_runs_become_longer_where_luck_decides() -> None:
    def plateau(rate: float, draw: int, steps: int) -> Iterator[float]:
        leaves = np.random.default_rng(draw).integers(0, 200)  # the step at which the loss begins to fall: luck
        for number in range(steps):
            yield 2.3 if rate > 0.5 or number < leaves else 0.3

    told: list[str] = []
    estimate = find_edge(plateau, budget=480, limit=5000, whole=1000, say=told.append)
    assert estimate.details["steps"] > 60
    assert any("too short" in message for message in told)


def test_runs_as_long_as_a_training_need_no_margin() -> None:
    short, whole = (find_edge(descent(4.0), budget=8 * STEPS, steps=STEPS, whole=k * STEPS) for k in (8, 1))
    assert whole.learning_rate(2) > 1.3 * short.learning_rate(2)
    longer = find_edge(descent(4.0), budget=8 * STEPS, steps=STEPS, whole=STEPS // 2)
    assert longer.learning_rate(2) == whole.learning_rate(2)
    assert whole.learning_rate(2) < 0.5  # the largest stable rate


@pytest.mark.parametrize("drift", [-0.3, 0.0, 0.4])
def test_2_over_l_follows_a_threshold_that_drifts_with_the_length_of_runs(drift: float) -> None:
    """In trainings of 1,600 steps it is 0.5. It often rises if the schedule decays, and falls if it does not."""

    def losses_at(rate: float, _draw: int, steps: int) -> Iterator[float]:
        well = rate < 0.5 * (steps / 1600) ** drift
        for number in range(steps):
            yield 2.3 * (1 - 0.9 * min(2 * number / steps, 1)) if well else 2.3

    told: list[str] = []
    estimate = find_edge(losses_at, budget=240, limit=5000, whole=1600, say=told.append)
    assert estimate.identified
    assert 0.25 * 0.5 < estimate.learning_rate(2) <= 0.5
    assert 60 < estimate.details["steps"] <= 400  # a quarter of a training
    assert estimate.details["spent"] <= 5000
    assert any("longer" in message for message in told)


@pytest.mark.slow
@pytest.mark.parametrize("slope", [0.02, 0.1, 0.2])  # 0.1 is usual
def test_of_whole_trainings_95_percent_converge_at_2_over_l(slope: float) -> None:
    """Searches on ten known curves; the thresholds of trainings, 8 times as long, drift by as much as assumed."""
    rng = np.random.default_rng(0)

    def search(edge: float) -> LipschitzEstimate:
        def losses_at(rate: float, _draw: int, _steps: int) -> Iterator[float]:
            well = rng.random() < 1 / (1 + (rate / edge) ** (1 / slope))
            for number in count():
                yield 2.3 * (1 - 0.9 * min(number / 40, 1)) if well else 2.3 * (1 + number)

        return find_edge(losses_at, budget=8 * 40, steps=40)

    edges = 0.1 * np.exp(rng.uniform(-3, 3, 10))
    largest = np.array([search(edge).learning_rate(2) for edge in edges])
    whole = edges * 8 ** (DRIFT * rng.standard_normal((1000, 10)))
    assert np.mean(1 / (1 + (largest / whole) ** (1 / slope))) > 0.95


def test_where_nothing_is_learned_at_first_it_looks_below() -> None:
    """A plain ResNet at twenty times its best rate: dead, tossed about, and now and then a little better by luck."""

    def losses_at(rate: float, draw: int, _steps: int) -> Iterator[float]:
        for number in count():
            if rate <= 0.03:
                yield 2.3 - min(rate / 0.03, 1) * min(number / STEPS, 1)
            else:
                yield 2.3 - 0.02 * (draw % 2) * min(number / 10, 1)

    estimate = find_edge(losses_at, budget=15 * STEPS, steps=STEPS)
    assert estimate.identified
    assert edge_of(estimate) == pytest.approx(0.03, rel=0.3)


def test_nothing_converges() -> None:
    def hopeless(_rate: float, _draw: int, _steps: int) -> Iterator[float]:
        yield 2.3
        yield from repeat(2.4)

    with pytest.raises(DivergedError, match="smaller"):
        find_edge(hopeless, budget=4 * STEPS, steps=STEPS)


def test_losses_below_zero_are_losses_too() -> None:
    def shifted(rate: float, draw: int, _steps: int) -> Iterator[float]:
        return (loss - 5.0 for loss in descent(4.0)(rate, draw, STEPS))

    assert edge_of(find_edge(shifted, budget=20 * STEPS, steps=STEPS)) == pytest.approx(0.5, rel=0.12)


@pytest.mark.parametrize(
    ("losses", "options", "cure"),
    [
        ([2.3] * 500, {"budget": 10}, "budget"),
        ([2.3] * 500, {"budget": 90, "steps": 100}, "budget"),
        ([2.3] * 500, {"budget": 900, "limit": 800}, "limit"),
        ([2.3] * 500, {"budget": 900, "steps": 0}, "steps"),
        ([math.nan] * 500, {"budget": 900}, "first loss"),
        ([], {"budget": 900}, "losses"),
        ([2.3] * 30, {"budget": 900}, "steps=30"),
        ([2.3] * 500, {"budget": 900, "before": [2.3]}, "before"),
        ([2.3] * 500, {"budget": 900, "start": 0.0}, "start"),
        ([2.3] * 500, {"budget": 900, "start": math.inf}, "start"),
        ([2.3] * 500, {"budget": 900, "start": -0.1}, "start"),
    ],
)
def test_what_cannot_work_is_refused_with_a_cure(losses: list[float], options: dict[str, Any], cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        find_edge(lambda _rate, _draw, _steps: iter(losses), **options)


@pytest.mark.parametrize("given", [0.3, None, [(2.3, 0.9)] * 500, [torch.ones(3)] * 500])
def test_losses_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match="loss"):
        find_edge(lambda _rate, _draw, _steps: given, budget=900)


def test_a_loss_may_begin_at_zero() -> None:
    def losses_at(rate: float, _draw: int, _steps: int) -> Iterator[float]:
        theta = 0.0
        while True:
            yield 2 * (theta - 1) ** 2 - 2
            theta -= rate * 4 * (theta - 1)

    assert edge_of(find_edge(losses_at, budget=8 * STEPS)) == pytest.approx(0.5, rel=0.2)
