"""A disk that refuses, one after the other, every step of the writing of every kind of file."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CREATION, WRITE, FLUSH, SYNC, RENAME, FOLDER_SYNC = "creation", "write", "flush", "fsync", "rename", "folder fsync"
Fault = tuple[str, str]  # a step, and a kind of file


def kind(path: Path) -> str:
    """What sort of file it is, by its name, or by that of the file which a temporary one will become."""
    name = path.name
    if name.endswith(".part"):
        name = name.removeprefix(".").rsplit(".", 2)[0]
    return re.sub(r"\d+", "N", name)


class Disk:
    """Knows every step that it was asked for; refuses each of the `refusals` once where `when` agrees, one in each go.

    A refusal is a step, a kind of file, and the number of the OSError.
    """

    def __init__(self, refusals: set[tuple[Fault, int]] | None = None, when: Callable[[], bool] = lambda: True) -> None:
        self.asked: set[Fault] = set()
        self.refused: list[tuple[Fault, int]] = []  # in this go
        self._refusals, self._when = refusals or set(), when
        self._renamed: dict[Path, Path] = {}  # by folder, the last file that got its name there

    def ask(self, step: str, path: Path) -> None:
        here = (step, kind(path))
        self.asked.add(here)
        wanted = sorted(refusal for refusal in self._refusals if refusal[0] == here)
        if wanted and not self.refused and self._when():
            self._refusals.remove(wanted[0])
            self.refused.append(wanted[0])
            raise OSError(wanted[0][1], os.strerror(wanted[0][1]))

    @contextlib.contextmanager
    def watched(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
        """While the block runs, everything that is written below `folder` is asked for first."""
        touch, open_, sync, replace = Path.touch, Path.open, os.fsync, Path.replace

        def touched(path: Path) -> None:
            if folder in path.parents:
                self.ask(CREATION, path)
            touch(path)

        def opened(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
            if folder not in path.parents or not set(mode) & set("wa"):
                return open_(path, mode, *args, **options)
            if "a" in mode:
                self.ask(CREATION, path)
            return Refusing(open_(path, mode, *args, **options), path, self)

        def fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_dir() and path in self._renamed:
                self.ask(FOLDER_SYNC, self._renamed[path])
            elif folder in path.parents:
                self.ask(SYNC, path)
            sync(descriptor)

        def renamed(path: Path, target: Path) -> Path:
            if folder in path.parents:
                self.ask(RENAME, target)
                self._renamed[target.parent] = target
            return replace(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "touch", touched)
            patch.setattr(Path, "open", opened)
            patch.setattr(os, "fsync", fsync)
            patch.setattr(Path, "replace", renamed)
            yield


class Refusing:
    """A file that asks its disk before it writes, and before it lets go of what it has written."""

    def __init__(self, file: Any, path: Path, disk: Disk) -> None:
        self._file, self._path, self._disk = file, path, disk

    def write(self, content: Any) -> Any:
        try:
            self._disk.ask(WRITE, self._path)
        except OSError:
            self._file.write(content[: len(content) // 2])  # a disk is full in the middle of a file
            raise
        return self._file.write(content)

    def flush(self) -> None:
        self._disk.ask(FLUSH, self._path)
        self._file.flush()

    def __enter__(self) -> "Refusing":
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[0] is None:
                self.flush()
        finally:
            self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
