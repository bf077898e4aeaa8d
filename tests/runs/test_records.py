"""What a stage ran on is kept when it ends, also where it was stopped, and by several at once."""

import platform
import threading
from pathlib import Path

import pytest
import torch

from excite.runs.records import circumstances, read_stages, recorded_stage

CPU = torch.device("cpu")


def test_a_stage_leaves_machine_versions_threads_date_and_time(tmp_path: Path) -> None:
    with recorded_stage(tmp_path, tmp_path / "outcome.json", CPU):
        (tmp_path / "outcome.json").touch()
    (stage,) = read_stages(tmp_path)
    assert stage.file == "outcome.json"
    assert stage.finished
    assert stage.seconds >= 0
    assert stage.circumstances == circumstances(CPU)
    assert stage.circumstances.threads == torch.get_num_threads()
    release, _, _build = torch.__version__.partition("+")  # which the package's metadata may leave out
    assert stage.circumstances.versions["torch"].startswith(release)
    assert platform.python_version() in str(stage.circumstances)


def test_a_stage_that_is_stopped_is_told_too_and_its_error_passes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), recorded_stage(tmp_path, tmp_path / "estimate.json", CPU):
        raise KeyboardInterrupt
    with recorded_stage(tmp_path, tmp_path / "estimate.json", CPU):
        (tmp_path / "estimate.json").touch()
    assert [stage.finished for stage in read_stages(tmp_path)] == [False, True]


def test_stages_that_end_at_once_are_all_recorded_stage(tmp_path: Path) -> None:
    def work(number: int) -> None:
        with recorded_stage(tmp_path, tmp_path / f"{number}.json", CPU):
            pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {stage.file for stage in read_stages(tmp_path)} == {f"{number}.json" for number in range(8)}


def test_a_folder_of_before_has_none(tmp_path: Path) -> None:
    assert read_stages(tmp_path) == ()
