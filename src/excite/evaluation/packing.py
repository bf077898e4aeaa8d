"""Outcomes as text: eight examples to a byte, written in hexadecimal."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def pack(outcomes: Tensor) -> str:
    """One bit per example.

    >>> pack(torch.tensor([True, False, True]))
    'a0'
    """
    return np.packbits(outcomes.cpu().numpy()).tobytes().hex()


def unpack(text: str, total: int) -> Tensor:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8))
    if not total <= len(bits) < total + 8:
        raise ValueError(f"{len(bits)} packed outcomes for {total} examples")
    return torch.from_numpy(bits[:total].astype(bool))


def pack_rows(fell_at: Tensor, radii: int) -> list[str]:
    """For each radius, who withstood there; `fell_at` as in `Curve`."""
    return [pack(fell_at > radius) for radius in range(1, radii + 1)]


def unpack_rows(rows: Sequence[str], correct: Tensor) -> Tensor:
    """`fell_at` again; `correct` says who was right without an attack."""
    return torch.stack([correct.long(), *(unpack(row, len(correct)).long() for row in rows)]).sum(0)
