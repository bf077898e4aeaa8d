"""A stage is a file that one process makes while the others wait for it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout


def once(file: Path, make: Callable[[], object], *, say: Callable[[str], None] = lambda _: None) -> None:
    """Call `make`, which leaves `file` behind, unless the file is there.

    Of several processes that want the file one makes it and the others wait. The lock is the operating system's: that
    of a process that died is free.
    """
    if file.exists():
        return
    with turn(file, say=say):
        if not file.exists():
            make()


@contextlib.contextmanager
def turn(file: Path, *, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """While the block runs, no other process has its turn at `file`; say so where that means waiting."""
    lock = _lock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{file}: another process is at it; waiting.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def being_made(file: Path) -> bool:
    """Whether some process is at it now."""
    if file.exists() or not file.parent.exists():
        return False
    lock = _lock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def _lock(file: Path) -> FileLock:
    file.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(file.with_name(f".{file.name}.lock"))
