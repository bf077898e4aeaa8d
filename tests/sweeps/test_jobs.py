"""One job: what it leaves, and how it ends when it cannot."""

from pathlib import Path

import pytest

from excite.console import Console
from excite.errors import InputError
from excite.runs import load
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.sweeps import ESTIMATE_L, Job, earlier_outcome, perform


@pytest.fixture
def run(tiny: Path, tmp_path: Path) -> Run:
    small = ["data.train_examples=64", "data.test_examples=20", "lipschitz.steps=5"]
    return Run(tmp_path / "run", load(str(tiny), overrides=small), console=Console())


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
        assert "epoch 1" in outcome.reason


def test_a_job_that_fails_says_why(run: Run) -> None:
    run.train("baseline")
    (weights,) = (run.folder / "baseline").glob("weights-*.safetensors")
    weights.write_bytes(b"")
    outcome = perform(Job(run.folder, "baseline"), None)
    assert outcome.status == "failed"
    assert "SHA-256" in outcome.reason


def test_a_fault_of_ours_ends_one_job_only(run: Run) -> None:
    (run.folder / "poe").write_text("a file where a folder should be", encoding="utf-8")
    outcome = perform(Job(run.folder, "poe"), None)
    assert outcome.status == "failed"
    assert "poe.log" in outcome.reason
    assert "Traceback" in (run.folder / "poe.log").read_text(encoding="utf-8")


def test_a_job_is_done_when_its_best_weights_are_attacked_too(tiny: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", load(str(tiny), overrides=["record.best_every=1"]), console=Console())
    job = Job(run.folder, "baseline")
    assert perform(job, None).status == "done"
    assert earlier_outcome(job)
    run.files.arm("baseline").of("best").evaluation_file.unlink()
    assert earlier_outcome(job) is None
    assert perform(job, None).status == "done"
    assert run.files.arm("baseline").of("best").evaluation


def test_an_arm_is_attacked_when_its_training_has_ended_and_not_before(run: Run) -> None:
    run.train("baseline")
    outcome = run.files.arm("baseline").outcome_file
    kept = outcome.read_bytes()
    outcome.unlink()  # as after a stop in its last epoch
    with pytest.raises(InputError, match="baseline"):
        run.attack("baseline")
    outcome.write_bytes(kept)
    assert run.attack("baseline").clean.total
