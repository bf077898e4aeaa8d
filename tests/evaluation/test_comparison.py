"""Paired comparisons against the binomial sum, by simulation, and against known splits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from excite.errors import InputError
from excite.evaluation import AttackResult, Cost, Evaluation, compare
from excite.evaluation.comparison import mcnemar


def evaluation(correct: NDArray[np.bool_], robust: NDArray[np.bool_], examples: str = "these") -> Evaluation:
    return Evaluation(correct, {"pgd": AttackResult("PGD", robust, ())}, (), Cost(), examples)


@settings(max_examples=50)
@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_counts_the_tosses_as_uneven(only_first: int, only_second: int) -> None:
    tosses = only_first + only_second
    tail = sum(math.comb(tosses, heads) for heads in range(min(only_first, only_second) + 1))
    assert mcnemar(only_first, only_second) == pytest.approx(min(1.0, 2 * tail / 2**tosses), rel=1e-9)


def test_mcnemar_survives_thousands_of_disagreements() -> None:
    assert 0 < mcnemar(2400, 2600) < 0.01


@pytest.mark.parametrize("chances", [(0.02, 0.02), (0.01, 0.05), (0.1, 0.3)])
def test_the_interval_covers(chances: tuple[float, float]) -> None:
    """Studies of 100 examples, of which the first and the second model alone get such shares right."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(100, [*chances, 1 - sum(chances)], size=1000)
    covered = 0
    for only_first, only_second, _ in counts:
        numbers = np.arange(100)
        one, two = numbers < only_first, (numbers >= 50) & (numbers < 50 + only_second)
        low, high = compare(evaluation(one, one), evaluation(two, two)).interval
        covered += low <= chances[1] - chances[0] <= high
    assert covered / 1000 >= 0.93


def test_compare_counts_pairs() -> None:
    one = np.array([True, True, True, False, False])
    two = np.array([True, False, True, True, True])
    result = compare(evaluation(one, one), evaluation(two, two), "pgd")
    assert (result.only_first, result.only_second, result.total) == (1, 2, 5)
    assert result.difference == pytest.approx(0.2)
    assert result.interval[0] <= 0.2 <= result.interval[1]
    assert "+20.00 points" in str(result)


def test_identical_models_do_not_differ() -> None:
    same = evaluation(np.ones(9, dtype=bool), np.ones(9, dtype=bool))
    result = compare(same, same)
    assert (result.difference, result.p_value) == (0.0, 1.0)
    assert result.interval == pytest.approx((-STANDARD, STANDARD))


STANDARD = 1.959964 * (2 / 11) ** 0.5 / 11**0.5  # nine examples without a difference, one each way added


def test_different_examples_cannot_be_compared() -> None:
    one = np.ones(3, dtype=bool)
    with pytest.raises(InputError, match="same ones"):
        compare(evaluation(one, one), evaluation(one, one, "others"))
    with pytest.raises(InputError, match="clean, pgd, worst"):
        compare(evaluation(one, one), evaluation(one, one), "square")
