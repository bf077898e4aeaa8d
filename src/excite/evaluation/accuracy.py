"""Accuracies with 95% intervals, at one radius (`Accuracy`) or at several (`Curve`), and how outcomes are packed."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from excite.quantities import pixels

Z95 = 1.959963984540054  # standard deviations that hold 95% of a normal distribution


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """`correct` out of `total`, with Wilson's 95% interval.

    >>> print(Accuracy(8, 10))
    80.00% (49.02 to 94.33)
    """

    correct: int
    total: int

    @property
    def value(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """All rates p for which `correct` is within 1.96 standard deviations of its mean, total × p (Wilson, 1927)."""
        share, width = self.value, 2 * (self.total + Z95**2)
        center = (2 * self.total * share + Z95**2) / width
        half = Z95 / width * math.sqrt(4 * self.total * share * (1 - share) + Z95**2)
        return center - half if self.correct else 0.0, center + half if self.correct < self.total else 1.0

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2%} ({100 * low:.2f} to {100 * high:.2f})"


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


@dataclasses.dataclass(frozen=True)
class MedianRadius:
    """The radius at which half of the images are wrong, with a 95% interval; ∞ if none was large enough."""

    value: float
    interval: tuple[float, float]
    eps: tuple[float, ...]

    def words(self, radius: float) -> str:
        """In steps of 1/255 if the curve's radii are."""
        if math.isinf(radius):
            return f"> {pixels(self.eps[-1])}"
        levels = all("/" in pixels(eps) for eps in self.eps if eps > 0)
        return f"{255 * radius:.2f}/255" if levels else f"{radius:.3g}"

    def to_json(self) -> dict[str, Any]:
        """JSON has no ∞; it becomes null."""
        value, *interval = (None if math.isinf(radius) else radius for radius in (self.value, *self.interval))
        return {"eps": value, "interval": interval}

    def __str__(self) -> str:
        low, high = map(self.words, self.interval)
        return f"{self.words(self.value)} ({low} to {high})"


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy at increasing radii: an example that falls at one radius counts as fallen at all larger ones.

    >>> print(Curve((1 / 255, 2 / 255), np.array([0, 1, 2, 3])))
    ε = 1/255 50.00% (15.00 to 85.00), 2/255 25.00% (4.56 to 69.94); median minimal ε 1.00/255 (0.00/255 to > 2/255)
    """

    eps: tuple[float, ...]
    fell_at: NDArray[np.int64]  # per example: 0 if wrong without attack, i if fallen at the i-th radius, n + 1 if never

    def robust(self, eps: float) -> NDArray[np.bool_]:
        """Per example, whether it withstood the attack at radius `eps`."""
        standing: NDArray[np.bool_] = self.fell_at > 1 + self.eps.index(eps)
        return standing

    @property
    def accuracies(self) -> tuple[Accuracy, ...]:
        return tuple(Accuracy(int(self.robust(eps).sum()), len(self.fell_at)) for eps in self.eps)

    @property
    def minimal_eps(self) -> NDArray[np.float64]:
        """Per example, the smallest radius at which it fell: 0 if wrong without an attack, ∞ if it never fell."""
        return np.array([0.0, *self.eps, math.inf])[self.fell_at]

    @property
    def median(self) -> MedianRadius:
        """The median of the minimal radii of all images; those wrong without an attack count as 0.

        Between two radii the accuracy is interpolated linearly. The interval holds all radii whose accuracy is within
        1.96 standard deviations of ½.
        """
        spread = Z95 / 2 / math.sqrt(len(self.fell_at))
        low, middle, high = (self._falls_to(0.5 + away) for away in (spread, 0.0, -spread))
        return MedianRadius(middle, (low, high), self.eps)

    def _falls_to(self, level: float) -> float:
        """The radius at which the accuracy falls to `level`."""
        before, above = 0.0, float((self.fell_at > 0).mean())
        if above <= level:
            return 0.0
        for eps, accuracy in zip(self.eps, self.accuracies, strict=True):
            if accuracy.value <= level:
                return before + (eps - before) * (above - level) / (above - accuracy.value)
            before, above = eps, accuracy.value
        return math.inf

    def to_json(self) -> dict[str, Any]:
        return {
            "eps": list(self.eps),
            "accuracy": [accuracy.value for accuracy in self.accuracies],
            "interval": [list(accuracy.interval) for accuracy in self.accuracies],
            "median": self.median.to_json(),
            "outcomes": [pack(self.robust(eps)) for eps in self.eps],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], correct: ArrayLike) -> "Curve":
        """`correct` says which examples are right without an attack."""
        fell_at = np.asarray(correct).astype(np.int64)
        for row in value["outcomes"]:
            fell_at += unpack(row, len(fell_at))
        return Curve(tuple(value["eps"]), fell_at)

    def __str__(self) -> str:
        points = zip(self.eps, self.accuracies, strict=True)
        accuracies = ", ".join(f"{pixels(eps)} {accuracy}" for eps, accuracy in points)
        return f"ε = {accuracies}; median minimal ε {self.median}"
