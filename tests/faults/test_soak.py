"""`make soak` sees a leak where there is one, and a few rounds of it leave no file open."""

import random

import pytest

from tests.faults.soak import Sample, judge, soak


def samples(*, leak: float = 0.0, lost: float = 0.0) -> list[Sample]:
    """Two hours of rounds with the noise of an allocator; `leak` MB and `lost` files more each round."""
    rng = random.Random(0)  # noqa: S311
    return [
        Sample(20.0 * n, n, 450 + rng.uniform(-4, 4) + leak * n + 30 * (n > 10), 6 + int(lost * n)) for n in range(360)
    ]


@pytest.mark.parametrize(
    ("leak", "lost", "flat"), [(0.0, 0.0, True), (0.1, 0.0, False), (0.0, 0.01, False), (-0.1, 0.0, True)]
)
def test_the_verdict(leak: float, lost: float, flat: bool) -> None:
    verdict = judge(samples(leak=leak, lost=lost))
    assert verdict.flat == flat
    assert str(verdict).startswith("flat: " if flat else "NOT FLAT: ")


@pytest.mark.slow
def test_a_few_rounds_leave_no_file_open() -> None:
    first, last = soak(0.0)
    assert last.handles <= first.handles
