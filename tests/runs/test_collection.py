"""Run folders at any depth, grouped by what they repeat."""

from pathlib import Path

import pytest

from excite.errors import InputError
from excite.files import write_json
from excite.report.rows import by_seed
from excite.runs import load
from excite.runs.folder import EXPERIMENT, OUTCOME, RunFolder, collect


def leave_run(folder: Path, *changes: str) -> None:
    write_json(folder / EXPERIMENT, load("mnist-sample", overrides=changes).to_json())


def test_runs_that_differ_in_their_seed_alone_belong_together(tmp_path: Path) -> None:
    leave_run(tmp_path / "a/seed-1", "seed=1")
    leave_run(tmp_path / "a/seed-0", "seed=0", 'arms=["baseline"]')  # which arms were asked for makes no difference
    leave_run(tmp_path / "b", "seed=0", "training.batch_size=8")
    groups = by_seed(collect([tmp_path / "b", tmp_path / "a", tmp_path]))
    assert [[run.experiment.seed for run in group] for group in groups] == [[0], [0, 1]]
    assert [group[0].experiment.training.batch_size for group in groups] == [8, 64]


def test_one_experiment_at_one_seed_does_not_count_twice(tmp_path: Path) -> None:
    leave_run(tmp_path / "a", "seed=1")
    leave_run(tmp_path / "b", "seed=1")
    with pytest.raises(InputError, match="seed"):
        by_seed(collect([tmp_path]))


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="excite run"):
        collect([tmp_path])


def test_arms_come_in_one_order_grid_searches_last(tmp_path: Path) -> None:
    leave_run(tmp_path)
    for arm in ("grid-10", "largest", "grid-2", "baseline"):
        write_json(tmp_path / arm / OUTCOME, {"rate": 0.1, "seconds": 1.0, "problem": None})
    assert [arm.name for arm in RunFolder(tmp_path).arms] == ["baseline", "largest", "grid-2", "grid-10"]
    assert RunFolder(tmp_path).arms[-1].title == "grid search, 10 rates"
