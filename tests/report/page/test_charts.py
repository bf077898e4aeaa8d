"""The charts' coordinates say what the numbers say."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excite.report.page.charts import accuracy_dots, arm_styles, learning_curves, linear_ticks, log_ticks
from excite.runs.collection import by_seed
from excite.runs.folder import RunFolder

WriteRun = Callable[..., RunFolder]
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


def test_lines_are_means_over_seeds_with_their_range(write_run: WriteRun) -> None:
    runs = [
        write_run({"baseline": {"epochs": [{"test_accuracy": a}, {"test_accuracy": 0.9}]}}, changes=[f"seed={seed}"])
        for seed, a in enumerate((0.2, 0.4))
    ]
    (group,) = by_seed(runs)
    loss, clean = learning_curves(group, arm_styles([group]))
    point, last = clean.lines[0].points
    assert (point.value, point.low, point.high) == pytest.approx((30, 20, 40))
    assert (last.low, last.high) == pytest.approx((90, 90))
    (x1, y1, text), (x2, y2, _) = clean.marks(clean.lines[0])
    assert x1 < x2
    assert y1 > y2
    assert text == "30% (20 to 40)"
    assert [line.points[0].value for line in loss.lines] == [0.5]


def test_what_is_not_a_number_or_was_not_recorded_is_not_drawn(write_run: WriteRun) -> None:
    run = write_run({"baseline": {"epochs": [{"test_accuracy": math.nan}, {"robust_accuracy": 0.1}]}, "poe": {}})
    (group,) = by_seed([run])
    charts = learning_curves(group, arm_styles([group]))
    assert [chart.title for chart in charts] == ["Training loss (nats, log scale)", "Robust test accuracy (%)"]
    assert [point.epoch for point in charts[1].lines[0].points] == [2]
    for chart in charts:
        assert all(tick.at == tick.at for tick in [*chart.x_ticks, *chart.y_ticks])
    assert accuracy_dots(group, arm_styles([group])) == []


def test_an_arm_looks_the_same_all_over_the_page(write_run: WriteRun) -> None:
    runs = [write_run({"baseline": {}, "largest": {}}), write_run({"baseline": {}, "poe": {}}, changes=["seed=1"])]
    assert arm_styles(by_seed(runs)) == {"baseline": 0, "largest": 1, "poe": 2}
