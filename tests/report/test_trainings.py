"""What differs between arms besides their rate is read from their folders, and unknown where they do not say it."""

from collections.abc import Callable
from dataclasses import asdict

import pytest

from excite.evaluation import Evaluation
from excite.report.page.page import page
from excite.report.tables.run_tables import study_table
from excite.report.trainings import Confounders, confounders, mean_of
from excite.runs.collection import by_seed
from excite.runs.folder import RunFolder
from excite.training.history import EpochMetrics, append

WriteRun = Callable[..., RunFolder]
Evaluated = Callable[..., Evaluation]


def trained(run: RunFolder, arm: str, rates: list[float]) -> Confounders:
    for number, rate in enumerate(rates, start=1):
        append(run.arm(arm).path, EpochMetrics(number, rate, 1 / number, 1.0))
    return confounders(run, run.arm(arm))


def test_all_that_a_fair_comparison_needs(write_run: WriteRun) -> None:
    told = {"rate": 0.4, "batch_size": 100, "steps": 50, "train_accuracy": 0.9}
    run = write_run({"baseline": told}, changes=["training.weight_decay=0.001"])
    found = trained(run, "baseline", [0.4, 0.4, 0.04, 0.04, 0.04])
    assert asdict(found) == pytest.approx(
        {
            "batch_size": 100,
            "rate_per_image": 0.004,
            "rate_times_decay": 0.0004,
            "steps": 50,
            "steps_after_drop": 30,
            "final_rate": 0.04,
            "final_loss": 0.2,
            "train_accuracy": 0.9,
        }
    )


def test_what_an_older_run_did_not_write_down_is_unknown(write_run: WriteRun) -> None:
    found = trained(write_run({"baseline": {}}), "baseline", [0.1, 0.1])
    assert (found.steps, found.steps_after_drop, found.train_accuracy) == (None, None, None)
    assert found.batch_size == 64


def test_a_rate_that_never_drops_has_no_steps_after_it(write_run: WriteRun) -> None:
    assert trained(write_run({"baseline": {"steps": 8}}), "baseline", [0.1, 0.1]).steps_after_drop is None


def test_tables_and_page_show_them_beside_the_best_weights(write_run: WriteRun, evaluated: Evaluated) -> None:
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
    table = study_table(by_seed(runs))
    records = {(record.arm, record.images): record for record in table.records}
    attack = next(record.images for record in table.records if record.images != "clean")
    assert records["poe", attack].best_accuracy == pytest.approx(45)
    assert records["poe", attack].best_difference == pytest.approx(-5)
    assert records["poe", attack].difference == pytest.approx(20)
    assert records["poe", "clean"].best_accuracy == pytest.approx(80)
    assert records["poe", attack].train_accuracy == pytest.approx(87.5)
    assert records["baseline", attack].steps == 10
    assert records["batch", attack].batch_size == 18
    assert records["batch", attack].best_accuracy is None
    assert f"best: {attack} %" in table.titles
    html = page(runs)
    assert "training accuracy %" in html
    assert f"best: {attack} %" in html
    assert "87.5" in html


def test_without_best_weights_there_is_no_such_column(write_run: WriteRun, evaluated: Evaluated) -> None:
    assert "best:" not in study_table(by_seed([write_run({"baseline": {"evaluation": evaluated(9, 4)}})])).markdown()


def test_means_over_seeds_are_of_what_is_known() -> None:
    one, other = (Confounders(32, 0.1, 0.0, steps, None, 0.1, loss, None) for steps, loss in ((10, 1.0), (30, None)))
    assert (mean_of([one, other]).steps, mean_of([one, other]).final_loss) == (20, 1.0)
