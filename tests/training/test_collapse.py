"""A training that has lost its way is told from one that learns."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excite.training.collapse import diagnose, measured_by


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([0.5, math.nan], "became nan"),
        ([math.inf], "became inf"),
        ([3.0], "above its initial value 2.3"),
        ([0.5, 2.31], "back at 2.31"),
        ([0.5, 2.27], "back at 2.27"),
    ],
)
def test_lost_runs_are_named(losses: list[float], message: str) -> None:
    assert message in (diagnose(losses, 2.3) or "")


@pytest.mark.parametrize("losses", [[2.3], [2.31, 2.305, 2.3], [2.2, 2.29], [0.5, 1.5], [1.0, 0.1]])
def test_slow_and_noisy_runs_are_not(losses: list[float]) -> None:
    assert diagnose(losses, 2.3) is None


def test_short_epochs_are_judged_together() -> None:
    """Ten steps at a large rate may cost some loss; fifty that do are a collapse, and so is ten times the loss."""
    bad_start = [2.6, 2.5, 2.2, 1.9, 1.8, 1.7]
    assert all(diagnose(bad_start[:end], 2.3, steps=10) is None for end in range(1, 7))
    assert all(diagnose([2.6] * end, 2.3, steps=10) is None for end in range(1, 5))
    assert "over 5 epochs was 2.6, above" in (diagnose([2.6] * 5, 2.3, steps=10) or "")
    assert "above its initial value" in (diagnose([30.0], 2.3, steps=10) or "")
    assert "over 2 epochs was 2.5, above" in (diagnose([2.6, 2.4], 2.3, steps=10, over=True) or "")
    assert diagnose([2.5, 2.0], 2.3, steps=10, over=True) is None
    assert diagnose([2.42], 2.35, ending=2.2) is None
    assert "over an epoch was 2.42, above" in (diagnose([2.42], 2.35, ending=2.36) or "")
    assert diagnose([9.0, 2.6, 2.4, 2.3, 2.2], 2.3, steps=10) is None
    assert "0.5 in the best 5 epochs, is back at 2.3" in (diagnose([0.5] * 5 + [2.3] * 5, 2.3, steps=10) or "")


@given(st.lists(st.floats(0.0, 0.97), min_size=1), st.floats(1e-6, 1e6))
def test_below_the_initial_loss_nothing_is_wrong(shares: list[float], initial: float) -> None:
    assert diagnose([share * initial for share in shares], initial) is None


@pytest.mark.parametrize("losses", [[-1.01], [-1.0, -1.5, -1.6], [-0.99], [-1.05, -1.0]])
def test_a_negative_loss_that_falls_is_sound(losses: list[float]) -> None:
    assert diagnose(losses, -1.0) is None


@pytest.mark.parametrize(
    ("losses", "message"), [([-0.9], "above its initial value -1"), ([-2.0, -1.0], "is back at -1"), ([8.1], "was 8.1")]
)
def test_a_negative_loss_that_rises_is_lost(losses: list[float], message: str) -> None:
    assert message in (diagnose(losses, -1.0) or "")


def test_a_negative_loss_is_hopeless_as_far_above_as_a_positive_one() -> None:
    assert "over an epoch was 8.1" in (diagnose([8.1], -1.0, steps=10) or "")
    assert diagnose([7.9], -1.0, steps=10) is None


@given(st.floats(0.9 * math.log(10), 1e3), st.integers(64, 10_000))
def test_an_untrained_network_is_measured_by_its_first_batch(initial: float, batch_size: int) -> None:
    assert measured_by(initial, math.log(10), batch_size) == (initial, "its initial value")


def test_what_a_first_batch_does_not_tell_guessing_does() -> None:
    guessing = math.log(10)
    assert measured_by(0.3, None, 64)[0] == 0.3
    assert measured_by(0.3, guessing, 1000)[0] == guessing
    assert measured_by(2.2, guessing, 8)[0] == guessing
    assert measured_by(2.5, guessing, 8)[0] == 2.5
