"""The disk refuses at any point of any write: the previous version loads, the message says how to go on."""

import errno
import os
import random
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from excite.errors import ExciteError
from excite.files import append_line, atomic, read_json, read_lines, write_bytes, write_json
from excite.report.page import write_page
from excite.runs.experiment import from_values
from excite.runs.procedure import Run
from excite.runs.verify import verify
from excite.training import checkpoints
from tests.contents import contents
from tests.faults.conftest import EVERY_FILE, Quiet
from tests.faults.disk import Disk

Refuse = Callable[[pytest.MonkeyPatch, int], None]


def at_write(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(Path, "write_bytes", refusing(number))


def at_creation(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(Path, "touch", refusing(number))


def at_sync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "fsync", refusing(number))


def at_rename(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(Path, "replace", refusing(number))


def refusing(number: int) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("refuse", [at_write, at_creation, at_sync, at_rename])
def test_the_previous_version_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse, number: int
) -> None:
    facts, weights = tmp_path / "facts.json", tmp_path / "weights-1.safetensors"
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    write_json(facts, {"version": 1})
    checkpoints.save(weights, model, optimizer, {})
    with monkeypatch.context() as broken:
        refuse(broken, number)
        writes: list[Callable[[], None]] = [
            partial(write_json, facts, {"version": 2}),
            partial(write_bytes, tmp_path / "new.bin", b"new"),
            partial(checkpoints.save, tmp_path / "weights-2.safetensors", model, optimizer, {}),
        ]
        for write in writes:
            with pytest.raises(ExciteError, match="same command") as caught:
                write()
            assert caught.value.exit_code == 1
            assert os.strerror(number) in str(caught.value)
    assert read_json(facts) == {"version": 1}
    checkpoints.check(tmp_path)
    assert not list(tmp_path.glob(".*.part"))


def test_a_disk_that_fills_up_under_numpy(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with (
            pytest.raises(ExciteError, match="Free some space"),
            atomic(tmp_path / "vector.npy") as temporary,
            temporary.open("wb") as file,
        ):
            np.save(file, np.zeros(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_that_cannot_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync
    calls: list[int] = []

    def second_time(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    write_json(tmp_path / "facts.json", {"version": 1})
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", second_time)
        with pytest.raises(ExciteError, match="same command"):
            write_json(tmp_path / "facts.json", {"version": 2})
    assert read_json(tmp_path / "facts.json") == {"version": 2}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_line_that_cannot_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    append_line(tmp_path / "metrics.jsonl", {"epoch": 1})
    with monkeypatch.context() as broken:
        at_sync(broken, number)
        with pytest.raises(ExciteError, match="same command"):
            append_line(tmp_path / "metrics.jsonl", {"epoch": 2})
    assert read_lines(tmp_path / "metrics.jsonl")[0] == {"epoch": 1}


def whole_run(folder: Path) -> None:
    """Every stage, and every kind of file that a run has."""
    run = Run(folder, from_values(EVERY_FILE), console=Quiet(), device="cpu").all()
    write_page([run], run.path / "report.html")


def until_refused(disk: Disk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Go on with a run until the disk refuses something, if it does: that is said, and everything is sound."""
    disk.refused.clear()
    said = None
    with disk.watched(monkeypatch, folder):
        try:
            whole_run(folder)
        except ExciteError as error:
            said = error
    for fault, number in disk.refused:
        assert said is not None, fault
        assert said.exit_code == 1, fault
        assert os.strerror(number) in str(said), fault
        assert "same command" in str(said), fault
    assert disk.refused or not said
    if (folder / "experiment.json").exists():
        assert not verify(folder).problems, disk.refused
    return bool(disk.refused)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it looks up there which file is synced")
@pytest.mark.parametrize("share", [0.025, pytest.param(1.0, marks=pytest.mark.slow)])
def test_every_step_of_every_kind_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    rng = random.Random(0)  # noqa: S311
    counting = Disk()
    assert not until_refused(counting, tmp_path / "whole", monkeypatch)
    whole = contents(tmp_path / "whole")
    every = [(fault, number) for fault in sorted(counting.asked) for number in (errno.ENOSPC, errno.EIO)]
    chosen = set(rng.sample(every, round(share * len(every))))
    left, tried, runs = set(chosen), 0, 0
    while left:
        folder = tmp_path / f"refused-{runs}"
        runs += 1
        disk = Disk(left, when=(lambda: rng.random() < 0.5) if runs == 1 else (lambda: True))
        while until_refused(disk, folder, monkeypatch):
            tried += 1
        assert contents(folder) == whole
        assert runs < 10, left
    kinds = {kind for (_, kind), _ in chosen}
    print(
        f"{tried} of {len(chosen)} refused steps of writing {len(kinds)} kinds of files (ENOSPC, EIO) were said, left "
        f"what was there, and {runs} of {runs} runs that met them ended with identical files"
    )
    assert tried == len(chosen)
