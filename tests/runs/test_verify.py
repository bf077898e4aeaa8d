"""What sound files say that cannot be; damaged ones are in tests/faults."""

import shutil
from pathlib import Path

import pytest

from excite.runs.folder import RunFolder
from excite.runs.verify import verify


@pytest.fixture
def run(small_run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(small_run.path, tmp_path / "run")))


def test_a_run_is_as_it_was_written(run: RunFolder) -> None:
    found = verify(run.path)
    assert found.files == len(run.files())
    assert not found.problems


def test_an_arm_at_another_rate_than_it_chooses(run: RunFolder) -> None:
    shutil.copytree(run.arm("baseline").path, run.arm("placebo").path)
    rate = run.arm("baseline").rate
    (problem,) = verify(run.path).problems
    assert f"{rate}, not {1.15 * rate}" in problem


def test_a_rate_whose_reason_was_not_kept_is_not_judged(run: RunFolder) -> None:
    run.estimate_file().unlink()
    assert not verify(run.path).problems


def test_committed_results_are_sound() -> None:
    results = Path(__file__).parents[2] / "results" / "batch-size-in-expectation"
    found = verify(results / "figure-4-small" / "batch_size-32,seed-0")
    assert found.files
    assert not found.problems
