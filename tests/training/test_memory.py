"""Freed memory is used again instead of coming new from the system; elsewhere than on glibc nothing happens."""

import platform
import resource
import subprocess
import sys

import pytest

from excite.training import keep_freed_memory

ALLOCATE = """
import resource
from excite.training import keep_freed_memory
{first}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = b"x" * 100_000_000
    del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(first: str) -> int:
    """Page faults of 100 MB that are asked for a second time, in a process of its own."""
    command = [sys.executable, "-c", ALLOCATE.format(first=first)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_block_is_used_again() -> None:
    pages = 100_000_000 // resource.getpagesize()
    assert faults("") >= pages // 512  # a huge page at a time at best
    assert faults("keep_freed_memory()") < pages // 5000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr("ctypes.CDLL", lambda _: pytest.fail("asked the C library"))
    keep_freed_memory()
