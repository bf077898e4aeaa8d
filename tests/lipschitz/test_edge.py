import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excite.errors import DivergedError
from excite.lipschitz.edge import find_edge

STEPS = 120


def quadratic(curvatures: list[float], momentum: float = 0.0) -> Callable[[float], Iterator[float]]:
    """Gradient descent (heavy ball) on ½ Σ λᵢ θᵢ² from θ = 1."""

    def losses_at(rate: float) -> Iterator[float]:
        theta, velocity = [1.0] * len(curvatures), [0.0] * len(curvatures)
        for _ in range(STEPS):
            yield 0.5 * sum(curvature * t * t for curvature, t in zip(curvatures, theta, strict=True))
            velocity = [momentum * v + c * t for v, c, t in zip(velocity, curvatures, theta, strict=True)]
            theta = [t - rate * v for t, v in zip(theta, velocity, strict=True)]

    return losses_at


@settings(max_examples=50, deadline=None)
@given(st.floats(0.05, 500), st.floats(1e-3, 10))
def test_on_a_quadratic_it_is_the_largest_curvature(largest: float, start: float) -> None:
    estimate = find_edge(quadratic([largest, largest / 3]), steps=STEPS, start=start, ratio=1.02, max_runs=60)
    low, high = estimate.interval
    assert estimate.identified
    assert low <= largest * 1.02
    assert largest <= high * 1.02
    assert estimate.constant == pytest.approx(largest, rel=0.04)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.05, 500), st.floats(1e-3, 10), st.floats(1e-3, 10))
def test_every_start_finds_the_same_constant(largest: float, one: float, other: float) -> None:
    found = [find_edge(quadratic([largest]), steps=STEPS, start=start, max_runs=60) for start in (one, other)]
    assert found[0].constant == found[1].constant
    assert found[0].interval == found[1].interval


def test_with_momentum_it_is_the_edge_of_heavy_ball() -> None:
    estimate = find_edge(quadratic([4.0], momentum=0.5), steps=STEPS, ratio=1.02, max_runs=60)
    assert estimate.learning_rate(2) == pytest.approx(2 * (1 + 0.5) / 4.0, rel=0.03)


def stops_improving(share: float) -> Callable[[float], Iterator[float]]:
    """A batch-norm network never blows up: past its edge, here 0.9, it only comes down by `share` of what it could."""

    def losses_at(rate: float) -> Iterator[float]:
        way = 0.7 if rate <= 0.9 else 0.7 * share
        for number in range(STEPS):
            yield 2.3 - way * (1 - math.exp(-5 * number / STEPS))

    return losses_at


@pytest.mark.parametrize("share", [0.05, 0.7])
@pytest.mark.parametrize("start", [0.02, 0.1, 3.0])
def test_a_run_that_only_stops_improving_does_not_converge(share: float, start: float) -> None:
    estimate = find_edge(stops_improving(share), steps=STEPS, start=start, ratio=1.05, max_runs=20)
    assert estimate.learning_rate(2) == pytest.approx(0.9, rel=0.05)


def test_a_run_that_comes_nearly_as_far_as_the_best_converges() -> None:
    assert not find_edge(stops_improving(0.8), steps=STEPS, max_runs=6).identified


def jumps_out_of_the_valley(rate: float) -> Iterator[float]:
    """A plain network past its edge, here 0.3: it learns, jumps, and learns again; its last losses look fine."""
    for number in range(STEPS):
        yield 5.0 if rate > 0.3 and number == STEPS // 2 else 2.3 * math.exp(-8 * number / STEPS)


def test_a_run_that_jumps_does_not_converge() -> None:
    estimate = find_edge(jumps_out_of_the_valley, steps=STEPS, ratio=1.05, max_runs=20)
    assert estimate.learning_rate(2) == pytest.approx(0.3, rel=0.05)


def test_no_edge_found_is_said() -> None:
    estimate = find_edge(quadratic([1e-9, 0.01]), steps=STEPS, max_runs=3)
    assert not estimate.identified
    assert "only an upper bound" in str(estimate)


def test_too_few_runs_to_close_the_bracket_is_said() -> None:
    estimate = find_edge(quadratic([4.0]), steps=STEPS, ratio=1.01, max_runs=5)
    assert not estimate.identified
    assert estimate.interval[0] < 4.0 < estimate.interval[1]


def test_runs_too_short_to_learn_are_said() -> None:
    def plateau(rate: float) -> Iterator[float]:
        yield from [2.3] + [2.28 if rate <= 0.3 else 2.3] * (STEPS - 1)

    estimate = find_edge(plateau, steps=STEPS)
    assert not estimate.identified
    assert "make the short runs longer" in str(estimate)


def test_nothing_converges() -> None:
    def hopeless(rate: float) -> Iterator[float]:
        yield from [2.3] + [2.4] * (STEPS - 1)

    with pytest.raises(DivergedError, match=r"At none of the rates .*smaller rate, or make the short runs longer"):
        find_edge(hopeless, steps=STEPS, max_runs=4)


def test_hopeless_runs_are_cut_short() -> None:
    taken: dict[float, int] = {}

    def counted(rate: float) -> Iterator[float]:
        for number, loss in enumerate(quadratic([100.0])(rate), start=1):
            taken[rate] = number
            yield loss

    find_edge(counted, steps=STEPS)
    assert max(taken.values()) == STEPS
    assert taken[0.1] < STEPS / 10


def test_same_runs_same_estimate() -> None:
    first, second = (find_edge(quadratic([3.0]), steps=STEPS) for _ in range(2))
    assert first == second
