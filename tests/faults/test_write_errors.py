"""The disk refuses at any point of any write: the previous version loads, the message says how to go on."""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from excite.errors import ExciteError
from excite.files import append_line, read_json, read_lines, write_bytes, write_json
from excite.training import checkpoints

Refuse = Callable[[pytest.MonkeyPatch, int], None]


def at_write(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(Path, "write_bytes", refusing(number))


def at_creation(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("tempfile.mkstemp", refusing(number))


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
            with pytest.raises(ExciteError, match="What was there before is untouched") as caught:
                write()
            assert caught.value.exit_code == 1
            assert os.strerror(number) in str(caught.value)
    assert read_json(facts) == {"version": 1}
    checkpoints.check(tmp_path)
    assert not list(tmp_path.glob(".*.part"))


def test_a_folder_that_cannot_be_synced_is_not_called_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        with pytest.raises(ExciteError, match="The new file is in place"):
            write_json(tmp_path / "facts.json", {"version": 2})
    assert read_json(tmp_path / "facts.json") == {"version": 2}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_line_that_cannot_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    append_line(tmp_path / "metrics.jsonl", {"epoch": 1})
    with monkeypatch.context() as broken:
        at_sync(broken, number)
        with pytest.raises(ExciteError, match="run the same command again"):
            append_line(tmp_path / "metrics.jsonl", {"epoch": 2})
    assert read_lines(tmp_path / "metrics.jsonl")[0] == {"epoch": 1}
