"""Trust an L that is identified, unless trainings or the L of short trainings contradict it."""

from collections.abc import Callable

import pytest

from excite.lipschitz.protocol import LipschitzEstimate
from excite.report.estimates import doubted, trust
from excite.report.rows import tidy
from excite.report.tables import StudyTable, table
from excite.runs.folder import RunFolder
from tests.report.test_verdict import DIVERGED, EDGE, arms, dead

WriteRun = Callable[..., RunFolder]


def test_one_training_that_diverges_at_2_over_l_does_not_contradict_it(
    write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of all trainings do."""
    run = write_run(arms(40, 60, largest=DIVERGED), estimate=EDGE)
    monkeypatch.setenv("COLUMNS", "200")
    assert doubted([run]) == {}
    assert "largest convergent" not in table(run)
    assert "largest convergent" in table(write_run(arms(40, 60, largest={"rate": 0.5}), estimate=EDGE))


def test_a_contradicted_l_is_not_trusted_in_the_table(write_run: WriteRun) -> None:
    run = write_run(arms(40, 60, largest={"rate": 0.3, "problem": "Training diverged"}), estimate=EDGE)
    assert list(doubted([run])) == ["L"]
    study = StudyTable(tidy([run]))
    assert {record["L_trusted"] for record in study.records} == {False}
    assert any("diverged at 0.3" in caution for caution in study.verdict.cautions)


@pytest.mark.parametrize(
    ("rate", "problem", "keyword"),
    [
        (0.5, None, None),
        (0.66, None, None),
        (1.5, None, "too low"),  # above 2/3, the upper end of the interval of 2/L
        (0.7, "Training diverged", None),
        (0.5, "Training diverged", None),
        (0.4, "Training diverged", None),  # the lower end
        (0.39, "Training diverged", "too high"),
    ],
)
def test_does_not_trust_a_contradicted_estimate(
    write_run: WriteRun, rate: float, problem: str | None, keyword: str | None
) -> None:
    judged = trust(write_run({"baseline": {"rate": rate, "problem": problem}}), EDGE)
    assert judged.trusted == (keyword is None)
    assert f"{rate:.3g}" in judged.reason or judged.trusted
    assert (keyword or "") in judged.reason


def test_does_not_trust_l_if_training_at_1_over_l_diverged(write_run: WriteRun) -> None:
    wide = LipschitzEstimate(4.0, (0.1, 50.0), "epochs", False, "25 maxima")
    at_half, above = (write_run({"poe": {"rate": rate, "problem": "Training diverged"}}) for rate in (0.25, 0.26))
    assert "too high" in trust(at_half, wide).reason
    assert "identified" in trust(above, wide).reason


def test_ignores_divergence_below_a_rate_that_converged(write_run: WriteRun) -> None:
    """As with ResNet-8 without batch norm, whose 1/L diverged in epoch 52 and whose 2/L trained."""
    broken = {"rate": 0.25, "problem": "Training diverged"}
    assert not trust(write_run({"poe": broken}), EDGE).trusted
    assert not trust(write_run({"poe": broken, "largest": {"rate": 0.5, "evaluation": dead()}}), EDGE).trusted
    assert trust(write_run({"poe": broken, "largest": {"rate": 0.5}}), EDGE).trusted


def test_learning_nothing_is_not_convergence(write_run: WriteRun) -> None:
    run = write_run({"baseline": {"rate": 1.5, "evaluation": dead()}}, estimate=EDGE)
    assert trust(run, EDGE).trusted
