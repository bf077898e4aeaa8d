"""Assumption 2 read from a trace equals that of the vectors; the heuristic for the batch size is the paper's."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from excite.errors import InputError
from excite.excitation import acuteness, choose_batch_size
from excite.trace import Trace

Floats = NDArray[np.float64]
TraceOf = Callable[[Floats, Floats, Floats], Trace]
Wander = Callable[[Literal["exact", "sketch"]], Trace]


def test_products_equal_those_of_the_vectors(trace_of: TraceOf, walk: Floats) -> None:
    found = acuteness(trace_of(walk, walk, np.full(len(walk), 0.1)))
    expected = [float((walk[k] - walk[k + 1]) @ (walk[k + 1] - walk[-1])) for k in range(len(walk) - 2)]
    np.testing.assert_allclose(found.products, expected, rtol=1e-9, atol=1e-12)
    assert found.fraction == np.mean(np.array(expected) >= 0)


def test_straight_path_is_acute_and_a_return_is_not(trace_of: TraceOf) -> None:
    line = np.arange(5.0)[:, None] * np.ones(3)
    assert acuteness(trace_of(line, line, np.ones(5))).fraction == 1
    back = np.array([[0.0], [1.0], [2.0], [3.0], [-1.0]])
    found = acuteness(trace_of(back, back, np.ones(5)))
    assert found.fraction == 0
    assert "0 of 3 steps" in str(found)


def test_two_moments_are_not_enough(trace_of: TraceOf) -> None:
    with pytest.raises(InputError, match="too few moments"):
        acuteness(trace_of(np.eye(2), np.eye(2), np.ones(2)))


def test_sketch_marks_undecided_steps(wander: Wander) -> None:
    exact, sketched = acuteness(wander("exact")), acuteness(wander("sketch"))
    assert not exact.undecided.any()
    assert "sketch" not in str(exact)
    assert sketched.margin == pytest.approx(2 / 8192**0.5)
    np.testing.assert_allclose(sketched.cosines, exact.cosines, atol=2 * sketched.margin)
    differ = exact.holds != sketched.holds
    assert differ.any()
    assert sketched.undecided[differ].all()
    assert not sketched.undecided.all()
    assert f"At {sketched.undecided.sum()} of them" in str(sketched)


def test_choose_batch_size_goes_down_from_the_smallest_always_acute_size() -> None:
    fractions = {64: 0.4, 256: 0.8, 1000: 1.0, 5000: 1.0}
    assert choose_batch_size(fractions, {64: 0.9, 256: 0.85, 1000: 0.7, 5000: 0.6}, 0.8) == 256
    assert choose_batch_size(fractions, {64: 0.9, 256: 0.85, 1000: 0.81, 5000: 0.6}, 0.8) == 1000
    assert choose_batch_size({64: 0.4, 256: 0.8}, {64: 0.9, 256: 0.85}, 0.8) == 256


def test_choose_batch_size_raises_if_no_size_is_accurate_enough() -> None:
    with pytest.raises(InputError, match="1000"):
        choose_batch_size({64: 0.4, 1000: 1.0}, {64: 0.3, 1000: 0.2}, 0.8)
    with pytest.raises(InputError, match="batch sizes"):
        choose_batch_size({64: 0.4}, {128: 0.3}, 0.8)


def test_refuses_a_diverged_run(trace_of: TraceOf, walk: Floats) -> None:
    walk[-1] = np.nan
    with pytest.raises(InputError, match="diverge"):
        acuteness(trace_of(walk, walk, np.ones(len(walk))))


@pytest.mark.parametrize(("fraction", "accuracy", "threshold"), [(0.7, 85.0, 0.8), (0.7, 0.85, 80.0), (70, 0.85, 0.8)])
def test_percentages_are_refused(fraction: float, accuracy: float, threshold: float) -> None:
    """With 70 instead of 0.7, the assumption would always seem to hold."""
    with pytest.raises(InputError, match="between 0 and 1"):
        choose_batch_size({64: fraction, 256: 1.0}, {64: accuracy, 256: 0.75}, threshold=threshold)
