"""Rows: one per experiment, arm and seed; what older versions did not store is unknown."""

from collections.abc import Callable

import pytest

from excite.evaluation import Evaluation
from excite.report.page import page
from excite.report.rows import Row, images_of, tidy
from excite.report.tables import StudyTable
from excite.report.verdict import results
from excite.runs.folder import RunFolder
from excite.training import EpochMetrics, append_metrics

WriteRun = Callable[..., RunFolder]
Evaluated = Callable[..., Evaluation]


def trained(run: RunFolder, rates: list[float]) -> Row:
    for number, rate in enumerate(rates, start=1):
        append_metrics(run.arm("baseline").path, EpochMetrics(number, rate, 1 / number, 1.0))
    (row,) = tidy([run])
    return row


def test_a_row_per_arm_and_seed_and_a_result_per_set_of_images(write_run: WriteRun, evaluated: Evaluated) -> None:
    arms = {"baseline": {"evaluation": evaluated(90, 40)}, "poe": {}}
    rows = tidy([write_run(arms, changes=[f"seed={seed}"]) for seed in range(2)])
    assert [(row.name, row.experiment.seed) for row in rows] == [(arm, seed) for arm in arms for seed in (0, 1)]
    clean, attack = images_of(rows)
    accuracies = [accuracy and accuracy.value for row in rows for accuracy in map(row.accuracy, (clean, attack))]
    assert accuracies == [0.9, 0.4, 0.9, 0.4, *[None] * 4]
    assert [(result.name, result.images) for result in results(rows)] == [
        (arm, images) for arm in arms for images in (clean, attack)
    ]


def test_page_has_possible_confounders(write_run: WriteRun) -> None:
    told = {"rate": 0.4, "batch_size": 100, "steps": 50, "train_accuracy": 0.9}
    run = write_run({"baseline": told}, changes=["training.weight_decay=0.001"])
    assert trained(run, [0.4, 0.04]).batch_size == 100
    assert "<td>100</td><td>0.004</td><td>0.0004</td><td>50</td><td>0.5</td><td>90.0</td>" in page([run])


def test_missing_fields_are_unknown(write_run: WriteRun) -> None:
    row = trained(write_run({"baseline": {}}), [0.1, 0.1])
    assert (row.batch_size, row.premise_met) == (64, None)


def test_table_and_page_show_confounders_and_best_weights(write_run: WriteRun, evaluated: Evaluated) -> None:
    runs = [
        write_run(
            {
                "baseline": {"evaluation": evaluated(90, 40), "best": evaluated(80, 50), "batch_size": 64, "steps": 10},
                "poe": {"evaluation": evaluated(90, 60), "best": evaluated(80, 45), "train_accuracy": 0.875},
                "batch": {"evaluation": evaluated(90, 60), "batch_size": 16 + 4 * seed},
            },
            changes=[f"seed={seed}"],
        )
        for seed in range(2)
    ]
    table = StudyTable(tidy(runs))
    records = {(record["arm"], record["images"]): record for record in table.records}
    attack = table.records[1]["images"]
    assert records["poe", attack]["best_accuracy"] == pytest.approx(45)
    assert records["poe", attack]["best_difference"] == pytest.approx(-5)
    assert records["poe", attack]["difference"] == pytest.approx(20)
    assert records["poe", "clean"]["best_accuracy"] == pytest.approx(80)
    assert records["poe", attack]["train_accuracy"] == pytest.approx(87.5)
    assert records["baseline", attack]["steps"] == 10
    assert records["batch", attack]["batch_size"] == 18
    assert records["batch", attack]["best_accuracy"] is None
    assert f"best: {attack} %" in table.columns
    html = page(runs)
    assert "training accuracy %" in html
    assert f"best: {attack} %" in html
    assert "87.5" in html


def test_no_best_column_without_best_weights(write_run: WriteRun, evaluated: Evaluated) -> None:
    assert "best:" not in StudyTable(tidy([write_run({"baseline": {"evaluation": evaluated(9, 4)}})])).markdown()
