"""The charts' coordinates say what the numbers say."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excite.report.page.charts import APART, RADII, RATES, Line, LineChart, Point, linear_ticks, log_ticks

NUMBERS = st.floats(-1e6, 1e6)


@given(NUMBERS, st.floats(1e-3, 1e6))
def test_linear_ticks_are_few_even_and_inside(low: float, width: float) -> None:
    ticks = linear_ticks(low, low + width)
    slack = 1e-9 * (abs(low) + width)
    assert 1 <= len(ticks) <= 7
    assert all(low - slack <= tick <= low + width + slack for tick in ticks)
    steps = [after - before for before, after in pairwise(ticks)]
    assert all(step == pytest.approx(steps[0], rel=1e-4) for step in steps)


@given(st.floats(1e-9, 1e6), st.floats(1.3, 1e9))
def test_log_ticks_are_inside(low: float, ratio: float) -> None:
    assert all(low <= tick <= low * ratio * (1 + 1e-9) for tick in log_ticks(low, low * ratio))


def chart(places: list[float], **options: object) -> LineChart:
    line = Line("baseline", 0, tuple(Point(place, 50.0, 40.0, 60.0) for place in places))
    return LineChart("accuracy", "%", (line,), banded=True, **options)  # type: ignore[arg-type]


def test_rates_lie_on_a_log_axis_and_radii_on_a_plain_one() -> None:
    rates, radii = chart([0.01, 0.1, 1.0], axis=RATES), chart([0.0, 4 / 255, 8 / 255], axis=RADII)
    for drawn in (rates, radii):
        first, middle, last = (x for x, _, _ in drawn.marks(drawn.lines[0]))
        assert middle - first == pytest.approx(last - middle)
    assert [tick.text for tick in rates.x_ticks] == ["0.01", "0.1", "1"]
    assert [tick.text for tick in radii.x_ticks] == ["0", "4/255", "8/255"]
    assert rates.to_json()["lines"][0]["points"][0][0] == "0.01"


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=20, unique=True))
def test_ticks_have_room_beside_each_other(places: list[float]) -> None:
    ticks = chart(places, axis=RATES).x_ticks
    assert ticks
    assert all(after.at - before.at >= APART for before, after in pairwise(ticks))
