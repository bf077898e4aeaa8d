"""Who was right and who was not: how many, how sure that makes us of the rate, and as text in a file."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """`correct` out of `total`, with Wilson's 95% interval.

    >>> print(Accuracy(8, 10))
    80.00% (49.02 to 94.33)
    """

    correct: int
    total: int
    known_interval: tuple[float, float] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def value(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The one a file has stated, or scipy's, which takes a second to import."""
        return self.known_interval or wilson(self.correct, self.total)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2%} ({100 * low:.2f} to {100 * high:.2f})"


def wilson(correct: int, total: int) -> tuple[float, float]:
    """The rates p for which the observed count lies within 1.96 standard deviations of np (Wilson, 1927)."""
    from scipy.stats import binomtest

    interval = binomtest(correct, total).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def pack(outcomes: ArrayLike) -> str:
    """Eight examples to a byte, written in hexadecimal.

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
