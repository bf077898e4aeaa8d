"""Wilson's interval against its definition."""

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excite.evaluation import Accuracy

Z95 = NormalDist().inv_cdf(0.975)


def test_published_values() -> None:
    low, high = Accuracy(8, 10).interval
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)


@given(st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_bounds_solve_the_score_equation(counts: tuple[int, int]) -> None:
    correct, total = counts
    accuracy = Accuracy(correct, total)
    low, high = accuracy.interval
    assert 0 <= low <= accuracy.value <= high <= 1
    for p in (low, high):
        if 1e-12 < p < 1 - 1e-12:
            assert abs(correct - total * p) == pytest.approx(Z95 * math.sqrt(total * p * (1 - p)), rel=1e-6)


def test_it_prints_its_interval() -> None:
    assert str(Accuracy(8, 10)) == "80.00% (49.02 to 94.33)"
