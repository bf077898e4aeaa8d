"""One job: what it leaves, and how it ends when it cannot."""

from pathlib import Path

import pytest

from excite.console import Console
from excite.runs import load
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.sweeps.jobs import ESTIMATE_L, Job, perform


@pytest.fixture
def run(tiny: Path, tmp_path: Path) -> Run:
    return Run(tmp_path / "run", load(str(tiny)), console=Console())


def test_a_job_leaves_its_files_and_a_log(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    for task in (ESTIMATE_L, "poe"):
        job = Job(run.folder, task)
        assert perform(job, None).status == "done"
        assert all(file.exists() for file in job.files)
    assert "training at rate" in (run.folder / "poe.log").read_text(encoding="utf-8")
    assert capfd.readouterr() == ("", "")
    results = RunFolder(run.folder)
    assert [arm.name for arm in results.arms] == ["poe"]
    assert results.estimate
    assert results.arms[0].rate == results.estimate.learning_rate()


def test_a_diverged_training_is_a_result(tiny: Path, tmp_path: Path) -> None:
    Run(tmp_path / "run", load(str(tiny), overrides=["training.schedule.rate=1000.0"]), console=Console())
    for _ in range(2):  # the second time it is read from the folder
        outcome = perform(Job(tmp_path / "run", "baseline"), None)
        assert outcome.status == "diverged"
        assert "diverged in epoch 1" in outcome.reason


def test_a_job_that_fails_says_why(run: Run) -> None:
    run.train("baseline")
    (weights,) = (run.folder / "baseline").glob("weights-*.safetensors")
    weights.write_bytes(b"")
    outcome = perform(Job(run.folder, "baseline"), None)
    assert outcome.status == "failed"
    assert "does not match the SHA-256" in outcome.reason


def test_a_fault_of_ours_ends_one_job_only(run: Run) -> None:
    (run.folder / "poe").write_text("a file where a folder should be", encoding="utf-8")
    outcome = perform(Job(run.folder, "poe"), None)
    assert outcome.status == "failed"
    assert "poe.log" in outcome.reason
    assert "Traceback" in (run.folder / "poe.log").read_text(encoding="utf-8")
