"""A disk that counts what is asked of it, and refuses once: at a step of the writing of a kind of file."""

import contextlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
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
    """Counts, by step and kind of file; where `fault` is given, its `nth` time is an OSError with that `number`."""

    def __init__(self, fault: Fault | None = None, *, nth: int = 0, number: int = 0) -> None:
        self.asked: Counter[Fault] = Counter()
        self.refused = 0
        self._fault, self._nth, self._number = fault, nth, number
        self._renamed: dict[Path, Path] = {}  # by folder, the last file that got its name there

    def ask(self, step: str, path: Path) -> None:
        here = (step, kind(path))
        self.asked[here] += 1
        if here == self._fault and self.asked[here] == self._nth + 1:
            self.refused += 1
            raise OSError(self._number, os.strerror(self._number))

    @contextlib.contextmanager
    def watched(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
        """While the block runs, everything that is written below `folder` is asked for first."""
        make, open_, sync, replace = tempfile.mkstemp, Path.open, os.fsync, Path.replace

        def mkstemp(*args: Any, **options: Any) -> Any:
            if folder in (into := Path(options["dir"]), *into.parents):
                self.ask(CREATION, into / f"{options['prefix'].strip('.')}")
            return make(*args, **options)

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
            patch.setattr(tempfile, "mkstemp", mkstemp)
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
