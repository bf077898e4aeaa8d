"""Outcomes as text: eight examples to a byte, written in hexadecimal."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pack(outcomes: ArrayLike) -> str:
    """One bit per example.

    >>> pack([True, False, True])
    'a0'
    """
    return np.packbits(np.asarray(outcomes)).tobytes().hex()


def unpack(text: str, total: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8))
    if not total <= len(bits) < total + 8:
        raise ValueError(f"{len(bits)} packed outcomes for {total} examples")
    return bits[:total].astype(bool)


def pack_rows(fell_at: ArrayLike, radii: int) -> list[str]:
    """For each radius, who withstood there; `fell_at` as in `Curve`."""
    return [pack(np.asarray(fell_at) > radius) for radius in range(1, radii + 1)]


def unpack_rows(rows: Sequence[str], correct: ArrayLike) -> NDArray[np.int64]:
    """`fell_at` again; `correct` says who was right without an attack."""
    right = np.asarray(correct)
    total: NDArray[np.int64] = np.sum([right, *(unpack(row, len(right)) for row in rows)], axis=0, dtype=np.int64)
    return total
