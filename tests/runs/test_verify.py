"""What sound files say that cannot be; damaged ones are in tests/faults."""

import shutil
from pathlib import Path

import pytest

from excite.files import read_json, write_json
from excite.runs.folder import RunFolder
from excite.runs.verify import verify


@pytest.fixture
def run(small_run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(small_run.path, tmp_path / "run")))


def test_a_run_is_as_it_was_written(run: RunFolder) -> None:
    found = verify(run.path)
    assert found.files == len(run.files())
    assert not found.problems


def test_files_that_contradict_each_other(run: RunFolder) -> None:
    outcome = run.arm("poe").outcome_file
    write_json(outcome, read_json(outcome) | {"epochs": 7})
    (problem,) = verify(run.path).problems
    assert "metrics.jsonl" in problem


def test_committed_results_are_sound() -> None:
    results = Path(__file__).parents[2] / "results" / "batch-size-in-expectation"
    found = verify(results / "figure-4-small" / "batch_size-32,seed-0")
    assert found.files
    assert not found.problems
