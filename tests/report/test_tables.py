"""Tables of one run and of many: their cells, marks, notes and formats."""

import html
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from excite.evaluation import AttackResult, Cost, Evaluation, Flag, Stage
from excite.evaluation.comparison import paired_difference
from excite.files import write_json
from excite.lipschitz.protocol import LipschitzEstimate
from excite.report.rows import tidy
from excite.report.tables import StudyTable, table
from excite.runs import load
from excite.runs.folder import ESTIMATE, EVALUATION, EXPERIMENT, OUTCOME, RunFolder
from excite.runs.records import StoredEstimate
from excite.training import EpochMetrics, append_metrics
from tests.report.conftest import EDGE, ROBUST

ATTACK = "PGD_20 ε=1/255"
MAXIMA = LipschitzEstimate(5.0, (4.0, 6.0), "epochs", False, "maxima", details={"M": 200, "N": 100})
Write = Callable[..., RunFolder]
Evaluated = Callable[..., Evaluation]


def cells(table: StudyTable, arm: str) -> dict[str, str]:
    (number,) = (number for number, one in enumerate(table.arms) if one["clean"].name == arm)
    return {title: column[number] for title, column in table.columns.items()}


def marks(table: StudyTable) -> list[tuple[str, list[str]]]:
    return [
        (arm["clean"].name, [mark for (row, _), mark in table.marks.items() if row == number])
        for number, arm in enumerate(table.arms)
    ]


def test_mean_and_deviation_over_seeds(three_seeds: list[RunFolder]) -> None:
    table = StudyTable(tidy(three_seeds))
    poe = cells(table, "poe")
    assert poe["clean %"] == "91.00 ± 1.00"
    assert poe[f"{ATTACK} %"] == "43.00 ± 2.65"  # 45, 40, 44: squared distances 4 + 9 + 1, over 2
    assert [poe[key] for key in ("data", "seeds", "rate η¹", "L", "by", "epochs", "batch")] == [
        "cifar10",
        "3",
        "0.25",
        "4",
        "edge",
        "20",
        "64",
    ]


def test_shows_the_papers_numbers_and_notes_a_small_twin(three_seeds: list[RunFolder]) -> None:
    table = StudyTable(tidy(three_seeds))
    baseline = cells(table, "baseline")
    assert baseline["paper: clean %"] == "81.55 ± 2.60"
    assert baseline["paper: robust %"] == "24.69 ± 2.30"
    assert baseline["paper: L, (M, N), epochs, batch"] == "3.526, (200, 100), 164, 5000"
    assert any("PGD-20, ε = 1/255" in note for note in table.notes)
    assert any("table-1-cifar10-resnet20-small" in note for note in table.notes)


def test_experiments_with_other_attacks_share_a_table(three_seeds: list[RunFolder], tmp_path: Path) -> None:
    """As rows of Table 1 and of Table 2 do: PGD-20 beside AutoAttack."""
    other = tmp_path / "other"
    values = load("table-2-trades").to_json()
    write_json(other / EXPERIMENT, values)
    write_json(other / "baseline" / OUTCOME, {"rate": 0.1, "seconds": 1.0, "problem": None})
    right = np.arange(100) < 50
    attacks = {name: AttackResult("AutoAttack", right, ()) for name in values["attacks"]}
    Evaluation(right, attacks, (), Cost(), examples="same").save(other / "baseline" / EVALUATION)
    table = StudyTable(tidy([*three_seeds, RunFolder(other)]))
    stated = {
        (record["experiment"], record["images"]): record["paper"]
        for record in table.records
        if record["arm"] == "baseline"
    }
    assert stated["table-1-cifar10-resnet20-small", ATTACK] == 24.69
    assert stated["table-1-cifar10-resnet20-small", "AutoAttack ε=8/255"] is None
    assert stated["table-2-trades", "AutoAttack ε=8/255"] == 52.12
    assert stated["table-2-trades", ATTACK] is None


def test_marks_best_and_second_in_every_experiment(
    three_seeds: list[RunFolder], write_run: Write, evaluated: Evaluated
) -> None:
    other = write_run(
        {"baseline": {"evaluation": evaluated(95, 60)}, "poe": {"evaluation": evaluated(95, 50)}},
        changes=["training.batch_size=32"],
    )
    table = StudyTable(tidy([*three_seeds, other]))
    assert marks(table) == [
        ("baseline", []),
        ("poe", ["best"]),
        ("largest", ["second"]),
        ("baseline", ["best"]),
        ("poe", ["second"]),
    ]
    lines = table.markdown().splitlines()
    assert "**43.00 ± 2.65**" in lines[3]
    assert "<u>42.00 ± 1.00</u>" in lines[4]


def test_marks_ties_as_best_and_diverged_arms_not_at_all(write_run: Write, evaluated: Evaluated) -> None:
    runs = [
        write_run(
            {
                "baseline": {"evaluation": evaluated(95, 40)},
                "poe": {"evaluation": evaluated(95, 40)},
                "largest": {"evaluation": evaluated(95, 90)} if seed else {"problem": "Training diverged in epoch 2"},
                "grid-2": {"evaluation": evaluated(95, 30)},
            },
            changes=[f"seed={seed}"],
        )
        for seed in range(2)
    ]
    table = StudyTable(tidy(runs))
    assert dict(marks(table)) == {"baseline": ["best"], "poe": ["best"], "largest": [], "grid-2": []}
    assert cells(table, "largest")["seeds"] == "1 of 2 (1 diverged)"
    assert "lenet5 relu, 2/L: Training diverged in epoch 2" in table.warnings


def test_does_not_mark_a_network_that_guesses(write_run: Write, evaluated: Evaluated) -> None:
    """Under an attack that nobody withstands, one answer for every image is right in a tenth of them."""
    guessing = replace(evaluated(10, 10), chance=0.1)
    found = {"baseline": evaluated(95, 1), "poe": evaluated(95, 2), "largest": guessing}
    run = write_run({name: {"evaluation": evaluation} for name, evaluation in found.items()})
    assert dict(marks(StudyTable(tidy([run])))) == {"baseline": ["second"], "poe": ["best"], "largest": []}


def test_the_difference_is_paired_and_has_its_interval(three_seeds: list[RunFolder]) -> None:
    table = StudyTable(tidy(three_seeds))
    evaluations = [{arm.name: arm.evaluation for arm in run.arms} for run in three_seeds]
    twin = paired_difference([(one["baseline"], one["poe"]) for one in evaluations], ATTACK)  # type: ignore[misc]
    low, high = (100 * bound for bound in twin.interval)
    expected = f"+10.00 ({low:+.2f} to {high:+.2f})".replace("-", "−")
    assert cells(table, "poe")[f"Δ {ATTACK}"] == expected
    assert cells(table, "baseline")[f"Δ {ATTACK}"] == "–"


def test_one_seed_has_wilsons_interval(write_run: Write, evaluated: Evaluated) -> None:
    table = StudyTable(tidy([write_run({"baseline": {"evaluation": evaluated(95, 60)}})]))
    assert cells(table, "baseline")[f"{ATTACK} %"] == "60.00 (50.20–69.06)"
    assert "Wilson" in table.notes[0]


def test_rates_and_constants_that_differ_between_seeds(write_run: Write) -> None:
    runs = [
        write_run({"poe": {"rate": rate}}, changes=[f"seed={seed}"], estimate=estimate)
        for seed, (rate, estimate) in enumerate([(0.25, EDGE), (0.2, MAXIMA)])
    ]
    poe = cells(StudyTable(tidy(runs)), "poe")
    assert poe["rate η¹"] == "0.225 (0.2–0.25)"
    assert poe["L"] == "4.5 (4–5) ?"
    assert poe["by"] == "edge, epochs"
    assert poe["clean %"] == "–"
    assert poe["seeds"] == "0 of 2"


def test_arm_with_another_estimator_shows_its_l(write_run: Write) -> None:
    runs = [
        write_run(
            {"poe": {"rate": 0.25}, "poe@paper": {"rate": 0.2}},
            changes=[f"seed={seed}", 'estimators.paper={method="epochs",shared=true}'],
            estimate=EDGE,
        )
        for seed in range(2)
    ]
    for run in runs:
        StoredEstimate(MAXIMA, 1.0).save(run.estimate_file("paper"))
    table = StudyTable(tidy(runs))
    assert (cells(table, "poe")["L"], cells(table, "poe")["by"]) == ("4", "edge")
    shared = cells(table, "poe@paper")
    assert (shared["L"], shared["by"]) == ("5 ?", "epochs, one for all seeds")
    StoredEstimate(replace(MAXIMA, constant=6.0), 1.0).save(runs[1].estimate_file("paper"))
    assert cells(StudyTable(tidy(RunFolder(run.path) for run in runs)), "poe@paper")["by"] == "epochs"


def test_setting_column_distinguishes_experiments(write_run: Write) -> None:
    runs = [
        write_run({"baseline": {}}, changes=["training.momentum=0.9"]),
        write_run({"baseline": {}}, changes=['training.schedule={kind="cosine",rate=0.1,epochs=20}']),
    ]
    table = StudyTable(tidy(runs))
    assert table.columns["setting"] == [
        "training.schedule.kind constant, training.momentum 0.9",
        "training.schedule.kind cosine, training.momentum 0.0, training.schedule.epochs 20",
    ]


def test_marks_doubted_accuracies_with_a_dagger(write_run: Write, evaluated: Evaluated) -> None:
    flagged = replace(evaluated(95, 60), flags=(Flag("masked", "no gradient."),))
    table = StudyTable(tidy([write_run({"baseline": {"evaluation": flagged}})]))
    assert cells(table, "baseline")[f"{ATTACK} %"].endswith(" †")
    assert not cells(table, "baseline")["clean %"].endswith(" †")
    assert any("masked" in warning for warning in table.warnings)
    assert any(note.startswith("†") for note in table.legend)


def test_json_has_unrounded_numbers(three_seeds: list[RunFolder]) -> None:
    table = StudyTable(tidy(three_seeds))
    value = json.loads(json.dumps(table.to_json()))
    assert (value["format"], value["verdict"]) == (3, str(table.verdict))
    (row,) = (row for row in value["rows"] if (row["arm"], row["images"]) == ("poe", ATTACK))
    assert row["accuracy"] == pytest.approx(43)
    assert row["deviation"] == pytest.approx(statistics.stdev(ROBUST["poe"]))
    assert (row["paper"], row["paper_deviation"]) == (28.72, 1.3)


ATTACKS = ("PGD ε=0.1", "PGD ε=0.3")


def evaluation(right: int, flags: tuple[Flag, ...] = ()) -> Evaluation:
    """100 images: 95 right clean, the first `right` of them under every attack."""

    def outcomes(number: int) -> NDArray[np.bool_]:
        standing: NDArray[np.bool_] = np.arange(100) < number
        return standing

    attacked = {
        name: AttackResult("PGD-40", outcomes(right), (Stage(name, right, Cost(1.5, 10, 10)),)) for name in ATTACKS
    }
    return Evaluation(outcomes(95), attacked, flags, Cost(3.0, 20, 20), examples="same")


@pytest.fixture
def results(tmp_path: Path) -> RunFolder:
    """The baseline got 40 of 100 right, 1/L 60, and 2/L diverged."""
    attacks = {name: {"kind": "pgd", "eps": 0.1, "step": 0.01} for name in ATTACKS}
    write_json(tmp_path / EXPERIMENT, load("mnist-sample").to_json() | {"attacks": attacks})
    estimate = LipschitzEstimate(4.0, (3.5, 4.0), "edge", True, "6 runs")
    write_json(tmp_path / ESTIMATE, {"estimate": estimate.to_json(), "seconds": 12.0})
    problem = "Training diverged in epoch 2 <at once>"
    for arm, rate, right, trouble in (
        ("baseline", 0.1, 40, None),
        ("poe", 0.25, 60, None),
        ("largest", 0.5, 0, problem),
    ):
        write_json(tmp_path / arm / OUTCOME, {"rate": rate, "seconds": 7.0, "problem": trouble})
        append_metrics(tmp_path / arm, EpochMetrics(1, rate, 0.5, 3.0, {"test_accuracy": 0.9}))
        if not trouble:
            flags = (Flag("vanishing", "every gradient is zero"),) if arm == "poe" else ()
            evaluation(right, flags).save(tmp_path / arm / EVALUATION)
    return RunFolder(tmp_path)


def test_the_table_of_one_run_has_its_numbers_its_verdict_and_l(
    results: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = table(results).splitlines()
    (poe,) = (line for line in lines if line.lstrip().startswith("PoE-motivated, 1/L "))
    assert poe.split()[3:7] == ["0.25", "95.00", "(88.82–97.85)", "60.00"]
    assert any(line.lstrip().startswith("2/L ") and line.count("diverged") == 4 for line in lines)
    assert any(line.startswith("L = 4 (3.5 to 4) by edge") for line in lines)
    assert any("PoE-motivated, 1/L" in line and "vanishing: every gradient is zero" in line for line in lines)


def test_warning_about_the_best_weights_spares_the_last_ones(results: RunFolder) -> None:
    doubt = (Flag("masked", "noise helps more than the gradient"),)
    evaluation(70, doubt).save(results.arm("baseline").of("best").evaluation_file)
    evaluation(70, ()).save(results.arm("poe").of("best").evaluation_file)
    run = RunFolder(results.path)
    study = StudyTable(tidy([run]))
    doubted = {arm: {title for title, text in cells(study, arm).items() if "†" in text} for arm in ("baseline", "poe")}
    attacks = list(run.experiment.attacks)
    assert doubted == {"baseline": {f"best: {on} %" for on in attacks}, "poe": {f"{on} %" for on in attacks}}
    (warning,) = (note for note in study.warnings if "masked" in note)
    assert "baseline, best weights" in warning


def test_a_notebook_shows_the_table_and_its_verdict(three_seeds: list[RunFolder]) -> None:
    table = StudyTable(tidy(three_seeds))
    shown = table._repr_html_()
    assert shown.count("<tr>") == 1 + len(table.arms)
    assert html.escape(str(table.verdict)) in shown
