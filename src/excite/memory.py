"""Large tensors come from memory that the process keeps: the system would clear their pages again at every step."""

import contextlib
import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # their numbers in glibc's malloc.h
LARGEST_KEPT = 1 << 30  # bytes; what is larger is a data set rather than one of a step's tensors


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, for the tensors of the next step; where it is not the C library, do nothing.

    By default it gives every block above 32 MB back to the system, which hands it out again page by page, each cleared.
    Numbers stay the same to the bit. The process holds more than it needs at a time, since freed blocks of other sizes
    lie between those in use: docs/training.md has the figures.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(M_TRIM_THRESHOLD, -1)
