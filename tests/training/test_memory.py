"""Freed memory is used again instead of coming new from the system; elsewhere than on glibc nothing happens."""

import platform
import resource
from multiprocessing.connection import Connection

import pytest

from excite.training import keep_freed_memory
from tests.faults.processes import FORKED


def allocate(keep: bool, said: Connection) -> None:
    if keep:
        keep_freed_memory()
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = b"x" * 100_000_000
        del block
        said.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def faults(*, keep: bool) -> int:
    """Page faults of 100 MB that are asked for a second time, in a process of its own."""
    hears, said = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=allocate, args=(keep, said))
    process.start()
    _, second = int(hears.recv()), int(hears.recv())
    process.join()
    return second


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_block_is_used_again() -> None:
    pages = 100_000_000 // resource.getpagesize()
    assert faults(keep=False) >= pages // 512  # a huge page at a time at best
    assert faults(keep=True) < pages // 5000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr("ctypes.CDLL", lambda _: pytest.fail("asked the C library"))
    keep_freed_memory()
