import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excite.training.divergence import diagnose


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


@given(st.lists(st.floats(0.0, 0.97), min_size=1), st.floats(1e-6, 1e6))
def test_below_the_initial_loss_nothing_is_wrong(shares: list[float], initial: float) -> None:
    assert diagnose([share * initial for share in shares], initial) is None
