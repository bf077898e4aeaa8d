"""The benchmark's arithmetic, on trainings whose regret can be counted by hand."""

import math

import pytest
from scipy import stats

from benchmarks.regret import Mean, Training, best_rate, failed, regrets, spread


def training(seed: int, rate: float, clean: float, robust: float = 0.0, method: str = "grid") -> Training:
    return Training("network", seed, method, rate, clean, robust, search_steps=0, steps=100)


GRID = [
    training(0, 0.1, 90.0, 50.0),
    training(1, 0.1, 80.0, 40.0),
    training(0, 0.2, 85.0, 70.0),
    training(1, 0.2, 83.0, 30.0),
    training(0, 0.4, 95.0, 10.0),  # the luckiest training of all is not the best rate
    training(1, 0.4, 10.0, 10.0),
]


def test_the_best_rate_has_the_best_mean_over_the_seeds_for_each_measure() -> None:
    assert best_rate(GRID, "clean") == 0.1
    assert best_rate(GRID, "robust") == 0.2


def test_regret_is_counted_from_the_best_rate_with_the_same_seed() -> None:
    picked = [training(0, 0.3, 92.0, 60.0, "ours"), training(1, 0.3, 70.0, 35.0, "ours")]
    assert regrets(picked, GRID, "clean") == {0: -2.0, 1: 10.0}
    assert regrets(picked, GRID, "robust") == {0: 10.0, 1: -5.0}


def test_a_seed_without_a_grid_has_no_regret() -> None:
    assert regrets([training(7, 0.3, 92.0)], GRID, "clean") == {}


def test_below_three_quarters_of_the_best_mean_a_training_has_failed() -> None:
    assert failed(training(0, 0.3, 0.75 * 85 - 0.1), GRID)
    assert not failed(training(0, 0.3, 0.75 * 85 + 0.1), GRID)


def test_the_interval_is_students() -> None:
    values = [1.0, 4.0, 2.0, 7.0]
    mean = Mean.of(values)
    low, high = stats.t.interval(0.95, 3, loc=3.5, scale=stats.sem(values))
    assert (mean.value, mean.low, mean.high) == pytest.approx((3.5, low, high))


def test_one_seed_says_nothing_about_the_next() -> None:
    assert Mean.of([3.0]) == Mean(3.0, -math.inf, math.inf)


def test_the_spread_is_that_of_the_network_where_picks_differ_most() -> None:
    assert spread({"one": [0.1, 0.2, 0.15], "two": [0.5, 0.5, 0.5]}) == 2.0
