"""What lies beside a run or a study neither stops nor changes it, and is not changed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from excite.errors import CorruptFileError
from excite.files import read_json, write_json
from excite.report.rows import by_seed
from excite.runs.experiment import Experiment, from_values
from excite.runs.folder import EXPERIMENT as FILE
from excite.runs.folder import OUTCOME, STUDY, RunFolder, begin_study, collect, run_folders
from excite.runs.procedure import Run
from excite.runs.stages.rate import leader_of
from tests.contents import contents
from tests.faults.conftest import EXPERIMENT, Quiet

SHARED = from_values(EXPERIMENT | {"lipschitz": {"method": "stated", "constant": 16.0, "shared": True}})


def newer(path: Path) -> None:
    write_json(path, SHARED.to_json())
    path.write_text(path.read_text(encoding="utf-8").replace('"format": 1', '"format": 2'), encoding="utf-8")


STRANGERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("junk", encoding="utf-8"),
    "empty": Path.touch,
    "binary": lambda path: path.write_bytes(b"\x00\xff\xfe"),
    "JSON of another tool": lambda path: path.write_text('{"experiment": 7}', encoding="utf-8"),
    "newer format": newer,
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "broken link": lambda path: path.symlink_to("nothing"),
}


@pytest.fixture(params=STRANGERS)
def stranger(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder beside the runs in `tmp_path`, with a file experiment.json that is not one of ours."""
    folder = tmp_path / "a-stranger"
    folder.mkdir()
    STRANGERS[request.param](folder / FILE)
    return folder


def begun(folder: Path, experiment: Experiment = SHARED) -> Run:
    return Run(folder, experiment, console=Quiet(), device="cpu")


def study(folder: Path, *seeds: int) -> list[Run]:
    runs = [begun(folder / f"seed-{seed}", SHARED.with_values({"seed": seed})) for seed in seeds]
    begin_study(folder, [run.folder for run in runs])
    return runs


@pytest.mark.usefixtures("stranger")
def test_a_strangers_folder_stops_neither_a_run_nor_a_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert begun(tmp_path / "alone").estimate().constant == 16.0
    assert [run.path.name for run in collect([tmp_path])] == ["alone"]
    shutil.rmtree(tmp_path / "alone")
    for run in study(tmp_path, 0, 1):
        assert run.estimate().constant == 16.0
    assert [[run.experiment.seed for run in group] for group in by_seed(collect([tmp_path]))] == [[0, 1]]
    assert not caplog.records


@pytest.mark.usefixtures("stranger")
def test_what_lies_inside_a_run_does_not_stop_it(tmp_path: Path) -> None:
    assert run_folders(SHARED, tmp_path, None) == {tmp_path: SHARED}
    run = begun(tmp_path)
    (tmp_path / "latest").symlink_to(tmp_path / "a-stranger")  # as loggers leave it
    shutil.copytree(run.folder / "a-stranger", run.folder / "backup", ignore=lambda *_: [FILE])
    shutil.copy(run.files.experiment_file, run.folder / "backup")
    assert run_folders(SHARED, tmp_path, None) == {tmp_path: SHARED}
    assert begun(tmp_path).estimate().constant == 16.0


def test_a_damaged_run_beside_a_study_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study(tmp_path, 0)
    write_json(tmp_path / "damaged" / "poe" / OUTCOME, {})
    (tmp_path / "damaged" / FILE).write_text("{", encoding="utf-8")
    assert [run.path.name for run in collect([tmp_path])] == ["seed-0"]
    assert "damaged" in caplog.text
    (tmp_path / STUDY).unlink()  # of several runs that are no study, none is passed over
    with pytest.raises(CorruptFileError, match="damaged"):
        by_seed(collect([tmp_path]))


def test_a_backup_of_a_run_is_not_written_to(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    backup = Path(shutil.copytree(run.folder, tmp_path / "a-copy"))
    before = contents(backup)
    assert "shared" not in run.estimate().basis
    assert run.files.estimate_file().exists()
    assert contents(backup) == before


def test_a_backup_inside_a_study_is_neither_written_to_nor_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = study(tmp_path, 0, 1)
    backup = Path(shutil.copytree(runs[0].folder, tmp_path / "a-copy"))
    before = contents(backup)
    assert "seed-0" in runs[1].estimate().basis
    assert contents(backup) == before
    assert [[run.experiment.seed for run in group] for group in by_seed(collect([tmp_path]))] == [[0, 1]]
    assert "a-copy" in caplog.text
    assert [run.path.name for run in collect([backup])] == ["a-copy"]  # unless somebody names it
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
