"""Let glibc keep freed memory, because getting it back from the operating system at every step is slow."""

import contextlib
import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # their numbers in glibc's malloc.h
LARGEST_KEPT = 1 << 30  # bytes; larger blocks are data sets rather than tensors of a training step


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the tensors of the next step; do nothing with another C library.

    By default glibc returns every block above 32 MB to the system, which clears its pages before it hands them out
    again. Results do not change. The process uses somewhat more memory: docs/training.md has the figures.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(M_TRIM_THRESHOLD, -1)
