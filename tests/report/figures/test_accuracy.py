"""The charts of the page: what reaches their axes."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from excite.evaluation import AttackResult, Cost, Evaluation
from excite.evaluation.result import Curve
from excite.report.figures import accuracy
from excite.report.page import page
from excite.report.rows import tidy
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WriteRun = Callable[..., RunFolder]
ATTACK = "PGD_20 ε=1/255"


def drawn(axes: "Axes") -> list[list[tuple[float, float]]]:
    return [list(zip(*map(np.ndarray.tolist, map(np.asarray, line.get_data())), strict=True)) for line in axes.lines]


def test_curves_are_means_over_seeds(write_run: WriteRun) -> None:
    runs = [
        write_run({"baseline": {"epochs": [{"test_accuracy": a}, {"test_accuracy": 0.9}]}}, changes=[f"seed={seed}"])
        for seed, a in enumerate((0.2, 0.4))
    ]
    loss, clean = (figure.axes[0] for figure in accuracy.curves(runs).values())
    assert np.array(drawn(clean)[0]) == pytest.approx(np.array([(1, 30), (2, 90)]))
    band = np.asarray(clean.collections[0].get_paths()[0].vertices).tolist()
    assert {(1, 20), (1, 40)} <= {(x, round(y)) for x, y in band}
    assert drawn(loss)[0] == [(1, 0.5), (2, 0.5)]
    assert loss.get_yscale() == "log"


def test_does_not_draw_missing_or_non_finite_values(write_run: WriteRun) -> None:
    run = write_run({"baseline": {"epochs": [{"test_accuracy": math.nan}, {"robust_accuracy": 0.1}]}, "poe": {}})
    charts = accuracy.curves([run])
    assert list(charts) == ["Training loss (nats, log scale)", "Robust test accuracy (%)"]
    assert drawn(charts["Robust test accuracy (%)"].axes[0]) == [[(2, 10)]]
    assert accuracy.dots(tidy([run])) == {}


def test_dots_have_wilsons_interval_for_one_seed_and_the_range_for_several(
    write_run: WriteRun, evaluated: Callable[..., Evaluation]
) -> None:
    runs = [
        write_run({"baseline": {"evaluation": evaluated(95, robust)}}, changes=[f"seed={seed}"])
        for seed, robust in enumerate((60, 40))
    ]
    interval, dot = drawn(accuracy.dots(tidy(runs[:1]))[ATTACK].axes[0])
    assert [x for x, _ in interval] == pytest.approx([50.2, 69.06], abs=0.01)
    assert dot[0][0] == pytest.approx(60)
    interval, dot = drawn(accuracy.dots(tidy(runs))[ATTACK].axes[0])
    assert [x for x, _ in interval] == pytest.approx([40, 60])
    assert dot[0][0] == pytest.approx(50)


def withstanding(*shares: float, total: int = 100) -> Evaluation:
    """These shares of the images are correct without attack, and at the radii 1/255, 2/255, …"""
    fell_at = np.full(total, len(shares))
    for number, share in enumerate(shares):
        fell_at[round(share * total) :] = np.minimum(fell_at[round(share * total) :], number)
    curve = Curve(tuple(number / 255 for number in range(1, len(shares))), fell_at)
    result = AttackResult("PGD", fell_at >= len(shares), (), curve)
    return Evaluation(fell_at > 0, {ATTACK: result}, (), Cost(1.0, 2, 2), examples="same")


def test_accuracy_against_radius_starts_at_zero(write_run: WriteRun) -> None:
    runs = [
        write_run({"baseline": {"evaluation": withstanding(0.9, 0.5, low)}}, changes=[f"seed={seed}"])
        for seed, low in enumerate((0.1, 0.3))
    ]
    (figure,) = accuracy.radii(tidy(runs)).values()
    assert np.array(drawn(figure.axes[0])[0]) == pytest.approx(np.array([(0, 90), (1 / 255, 50), (2 / 255, 20)]))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "1/255", "2/255"]
    assert 'id="radii"' in page(runs)


def test_an_attack_at_one_radius_has_no_curve(write_run: WriteRun, evaluated: Callable[..., Evaluation]) -> None:
    assert accuracy.radii(tidy([write_run({"baseline": {"evaluation": evaluated(90, 50)}})])) == {}


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
    runs.append(write_run({"baseline": {"rate": 1.0, "problem": "lost"}}, changes=["training.schedule.rate=1.0"]))
    clean, robust, diverged = drawn(accuracy.against_rate([runs]).axes[0])
    assert np.array(robust) == pytest.approx(np.array([(0.01, 35), (0.1, 55)]))
    assert np.array(clean) == pytest.approx(np.array([(0.01, 90), (0.1, 90)]))
    assert diverged == [(1.0, 0.0)]
    assert 'id="rates"' in page(runs)


def test_no_rate_chart_for_one_rate_or_two_networks(write_run: WriteRun, evaluated: Callable[..., Evaluation]) -> None:
    found = {"baseline": {"evaluation": evaluated(90, 50)}}
    one = [write_run(found), write_run(found, changes=["seed=1"])]
    two = [write_run(found), write_run(found, changes=["training.schedule.rate=0.3", "training.batch_size=8"])]
    for runs in (one, two):
        assert 'id="rates"' not in page(runs)
