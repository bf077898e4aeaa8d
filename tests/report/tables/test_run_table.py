"""The table of a run folder with known contents."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from excite.evaluation import AttackResult, Cost, Evaluation, Flag, Stage
from excite.files import write_json
from excite.lipschitz.estimate import LipschitzEstimate
from excite.report import table
from excite.runs import load
from excite.runs.folder import ESTIMATE, EVALUATION, EXPERIMENT, OUTCOME, RunFolder
from excite.training.history import EpochMetrics, append

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
        append(tmp_path / arm, EpochMetrics(1, rate, 0.5, 3.0, {"test_accuracy": 0.9}))
        if not trouble:
            flags = (Flag("vanishing", "every gradient is zero"),) if arm == "poe" else ()
            evaluation(right, flags).save(tmp_path / arm / EVALUATION)
    return RunFolder(tmp_path)


def test_the_table_holds_every_figure(results: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = table(results).splitlines()
    (poe,) = (line for line in lines if line.lstrip().startswith("PoE-motivated, 1/L "))
    assert poe.split()[2:] == [
        "0.25",
        "95.0",
        "(88.8–97.8)",
        "60.0",
        "(50.2–69.1)",
        "60.0",
        "(50.2–69.1)",
        "7.0",
        "3.0",
    ]
    assert any(line.lstrip().startswith("2/L ") and line.count("diverged") == 3 for line in lines)
    assert any(line.startswith("L = 4 (3.5 to 4) by edge") and "12.0 s" in line for line in lines)
    assert "PoE-motivated, 1/L, do not trust this yet: vanishing: every gradient is zero" in lines


def test_the_best_weights_have_columns_of_their_own_where_they_were_kept(
    results: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "best:" not in table(results)
    evaluation(70, ()).save(results.arm("poe").best.evaluation_file)
    text = table(RunFolder(results.path))
    assert "best: clean %" in text
    (poe,) = (line for line in text.splitlines() if line.lstrip().startswith("PoE-motivated, 1/L "))
    assert poe.split()[2:].count("70.0") == 2
