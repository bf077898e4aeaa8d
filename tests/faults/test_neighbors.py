"""What lies beside a run or a study neither stops nor changes it, and is not changed."""

import shutil
from pathlib import Path

import pytest

from excite.errors import CorruptFileError, InputError
from excite.files import read_json, write_json
from excite.report.rows import by_seed
from excite.runs.experiment import Experiment, from_values
from excite.runs.folder import STUDY, RunFolder, begin_study, collect
from excite.runs.procedure import Run
from excite.runs.stages.rate import leader_of
from tests.contents import contents
from tests.faults.conftest import EXPERIMENT, Quiet

SHARED = from_values(EXPERIMENT | {"lipschitz": {"method": "stated", "constant": 16.0, "shared": True}})


def begun(folder: Path, experiment: Experiment = SHARED) -> Run:
    return Run(folder, experiment, console=Quiet(), device="cpu")


def study(folder: Path, *seeds: int) -> list[Run]:
    runs = [begun(folder / f"seed-{seed}", SHARED.with_values({"seed": seed})) for seed in seeds]
    begin_study(folder, [run.folder for run in runs])
    return runs


def test_a_backup_of_a_run_is_not_written_to(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    backup = Path(shutil.copytree(run.folder, tmp_path / "a-copy"))
    before = contents(backup)
    assert "shared" not in run.estimate().basis
    assert run.files.estimate_file().exists()
    assert contents(backup) == before


def test_a_backup_inside_a_study_is_not_written_to_and_does_not_count_twice(tmp_path: Path) -> None:
    runs = study(tmp_path, 0, 1)
    backup = Path(shutil.copytree(runs[0].folder, tmp_path / "a-copy"))
    before = contents(backup)
    assert "seed-0" in runs[1].estimate().basis
    assert contents(backup) == before
    with pytest.raises(InputError, match="a-copy"):
        by_seed(collect([tmp_path]))
    assert [run.path.name for run in collect([backup])] == ["a-copy"]
    assert begun(backup).files.experiment.seed == 0
    assert leader_of(RunFolder(backup), RunFolder(backup).experiment, "") is None


def test_the_l_of_a_study_stays_that_of_its_first_run(tmp_path: Path) -> None:
    first, *_ = study(tmp_path, 1, 2)
    first.estimate()
    joined, *_ = study(tmp_path, 0, 1, 2)
    assert "seed-1" in joined.estimate().basis


def test_a_study_of_a_damaged_file_is_not_followed_elsewhere(tmp_path: Path) -> None:
    inside = tmp_path / "study"
    runs = study(inside, 0, 1)
    elsewhere = begun(tmp_path / "elsewhere", SHARED.with_values({"seed": 3}))
    names = read_json(inside / STUDY)["runs"]
    for name in ("../elsewhere", str(elsewhere.folder), "..", ".", ""):
        write_json(inside / STUDY, {"runs": [name, *names]})
        with pytest.raises(CorruptFileError, match=STUDY):
            runs[1].estimate()
    assert not elsewhere.files.estimate_file().exists()
