"""The lines and dots of the page, and where they lie."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excite.evaluation import AttackResult, Cost, Evaluation
from excite.evaluation.accuracy import Curve
from excite.report.page.charts import (
    APART,
    RADII,
    RATES,
    Line,
    LineChart,
    Point,
    accuracy_dots,
    arm_styles,
    learning_curves,
    linear_ticks,
    log_ticks,
    radius_curves,
    rate_curves,
)
from excite.report.page.page import page
from excite.runs.collection import by_seed
from excite.runs.folder import RunFolder

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


WriteRun = Callable[..., RunFolder]
ATTACK = "PGD_20 ε=1/255"


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
    assert [point.at for point in charts[1].lines[0].points] == [2]
    for chart in charts:
        assert all(tick.at == tick.at for tick in [*chart.x_ticks, *chart.y_ticks])
    assert accuracy_dots(group, arm_styles([group])) == []


def test_an_arm_looks_the_same_all_over_the_page(write_run: WriteRun) -> None:
    runs = [write_run({"baseline": {}, "largest": {}}), write_run({"baseline": {}, "poe": {}}, changes=["seed=1"])]
    assert arm_styles(by_seed(runs)) == {"baseline": 0, "largest": 1, "poe": 2}


def withstanding(*shares: float, total: int = 100) -> Evaluation:
    """Right without an attack, and at radii 1/255, 2/255, …: these shares of the images."""
    fell_at = np.full(total, len(shares))
    for number, share in enumerate(shares):
        fell_at[round(share * total) :] = np.minimum(fell_at[round(share * total) :], number)
    curve = Curve(tuple(number / 255 for number in range(1, len(shares))), fell_at)
    result = AttackResult("PGD", fell_at >= len(shares), (), curve)
    return Evaluation(fell_at > 0, {ATTACK: result}, (), Cost(1.0, 2, 2), examples="same")


def test_accuracy_against_radius_begins_with_the_images_as_they_are(write_run: WriteRun) -> None:
    runs = [
        write_run({"baseline": {"evaluation": withstanding(0.9, 0.5, low)}}, changes=[f"seed={seed}"])
        for seed, low in enumerate((0.1, 0.3))
    ]
    (group,) = by_seed(runs)
    (chart,) = radius_curves(group, arm_styles([group]))
    points = chart.lines[0].points
    assert [point.at for point in points] == pytest.approx([0, 1 / 255, 2 / 255])
    assert [point.value for point in points] == pytest.approx([90, 50, 20])
    assert (points[2].low, points[2].high) == pytest.approx((10, 30))
    html = page(runs)
    assert "Accuracy against ε" in html
    assert "against ε" in html


def test_an_attack_at_one_radius_has_no_curve(write_run: WriteRun, evaluated: Callable[..., Evaluation]) -> None:
    (group,) = by_seed([write_run({"baseline": {"evaluation": evaluated(90, 50)}})])
    assert radius_curves(group, arm_styles([group])) == []


def test_a_sweep_over_rates_draws_accuracy_against_rate(
    write_run: WriteRun, evaluated: Callable[..., Evaluation]
) -> None:
    runs = [
        write_run(
            {"baseline": {"rate": rate, "evaluation": evaluated(90, robust)}},
            changes=[f"training.schedule.rate={rate}", f"seed={seed}"],
        )
        for rate, found in ((0.01, (30, 40)), (0.1, (60, 50)))
        for seed, robust in enumerate(found)
    ]
    lost = write_run({"baseline": {"rate": 1.0, "problem": "lost"}}, changes=["training.schedule.rate=1.0"])
    styles = arm_styles(by_seed([*runs, lost]))
    clean, robust = rate_curves([*runs, lost], styles)
    assert [(p.at, p.value, p.low, p.high) for p in robust.lines[0].points] == [
        pytest.approx((0.01, 35, 30, 40)),
        pytest.approx((0.1, 55, 50, 60)),
    ]
    assert [point.value for point in clean.lines[0].points] == pytest.approx([90, 90])
    assert robust.note == "Diverged: baseline at 1."
    html = page([*runs, lost])
    assert "Accuracy against the rate" in html
    assert robust.note in html


def test_runs_at_one_rate_or_of_two_networks_have_no_such_chart(
    write_run: WriteRun, evaluated: Callable[..., Evaluation]
) -> None:
    found = {"baseline": {"evaluation": evaluated(90, 50)}}
    one = [write_run(found), write_run(found, changes=["seed=1"])]
    two = [write_run(found), write_run(found, changes=["training.schedule.rate=0.3", "training.batch_size=8"])]
    for runs in (one, two):
        assert rate_curves(runs, arm_styles(by_seed(runs))) == []
