"""Accuracy against ε: at which of several radii each image fell."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from excite.evaluation.outcomes import Accuracy, pack_rows, unpack_rows
from excite.quantities import pixels


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """How one model stands at increasing radii: who fell at one counts as fallen at all after it.

    >>> print(Curve((1 / 255, 2 / 255), np.array([0, 1, 2, 3])))
    ε = 1/255 50.00% (15.00 to 85.00), 2/255 25.00% (4.56 to 69.94)
    """

    eps: tuple[float, ...]
    fell_at: NDArray[np.int64]  # per example: 0 wrong without attack, i wrong from the i-th radius on, more if never
    known_intervals: tuple[tuple[float, float], ...] | None = dataclasses.field(default=None, repr=False)

    def robust(self, eps: float) -> NDArray[np.bool_]:
        """Per example, whether it withstood at one of the radii."""
        standing: NDArray[np.bool_] = self.fell_at > 1 + self.eps.index(eps)
        return standing

    @property
    def accuracies(self) -> tuple[Accuracy, ...]:
        intervals = self.known_intervals or [None] * len(self.eps)
        return tuple(
            Accuracy(int(self.robust(eps).sum()), len(self.fell_at), interval)
            for eps, interval in zip(self.eps, intervals, strict=True)
        )

    @property
    def minimal_eps(self) -> NDArray[np.float64]:
        """Per example, the smallest radius at which it fell: 0 if wrong without an attack, ∞ if it never fell."""
        return np.array([0.0, *self.eps, math.inf])[self.fell_at]

    def to_json(self) -> dict[str, Any]:
        return {
            "eps": list(self.eps),
            "accuracy": [accuracy.value for accuracy in self.accuracies],
            "interval": [list(accuracy.interval) for accuracy in self.accuracies],
            "outcomes": pack_rows(self.fell_at, len(self.eps)),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], correct: ArrayLike) -> "Curve":
        intervals = tuple((float(low), float(high)) for low, high in value["interval"])
        return Curve(tuple(value["eps"]), unpack_rows(value["outcomes"], correct), intervals)

    def __str__(self) -> str:
        points = zip(self.eps, self.accuracies, strict=True)
        return "ε = " + ", ".join(f"{pixels(eps)} {accuracy}" for eps, accuracy in points)
