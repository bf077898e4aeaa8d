"""L and its p-value for every (M, N) and initial shape: Algorithm 1's block maxima and loops, and its heuristic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.extremes.reverse_weibull import ReverseWeibullFit, fit_many
from excite.lipschitz.extremes.stopping_point import stopping_point

Floats = NDArray[np.float64]
Draw = Callable[[int, int, np.random.Generator], Floats]  # (M, N, rng) -> M block maxima
Statistic = Literal["endpoint", "scale"]
Protocol = Literal["paper", "authors"]

PAPER_MAXIMA = (25, 55, 105, 155, 200)
PAPER_SHAPES = (0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_AUTHORS_SMALLEST_P = 0.001


def secant_maxima(slopes: Floats) -> Draw:
    """Blocks of N distinct moments, paired at random; `slopes[i, j]` is the secant between moments i and j."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        points = _distinct(len(slopes), n_maxima, n_points - n_points % 2, rng)
        return _largest(slopes[points[:, 0::2], points[:, 1::2]])

    return draw


def unmatched_maxima(gradients: Floats, parameters: Floats) -> Draw:
    """As the released code draws: gradient distances and parameter distances from different pairs of moments."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        even = n_points - n_points % 2
        first, second = (_distinct(len(gradients), n_maxima, even, rng) for _ in range(2))
        rise = gradients[first[:, 0::2], first[:, 1::2]]
        run = parameters[second[:, 0::2], second[:, 1::2]]
        return _largest(np.divide(rise, run, out=np.zeros_like(rise), where=run > 0))

    return draw


def local_maxima(slopes: Floats) -> Draw:
    """Blocks of N/2 distinct slopes, each measured at one step: its two points are the step's ends."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        return _largest(slopes[_distinct(len(slopes), n_maxima, n_points // 2, rng)])

    return draw


def _distinct(n: int, blocks: int, size: int, rng: np.random.Generator) -> NDArray[np.int_]:
    if size > n:
        raise InputError(f"The trace holds {n} values; a block needs {size}. Record longer or pass a smaller N.")
    return rng.permuted(np.tile(np.arange(n), (blocks, 1)), axis=1)[:, :size]


def _largest(slopes: Floats) -> Floats:
    largest: Floats = slopes.max(axis=1)
    return largest


class Cell(NamedTuple):
    constant: float
    p_value: float
    identified: bool


@dataclass(frozen=True)
class Reading:
    """How L is read off M block maxima.

    The endpoint of the fitted reverse Weibull, or its scale. Where the maxima do not tell it from the Gumbel limit,
    the endpoint is replaced by a bound, the value exceeded once in `return_period` maxima; the scale by the one at
    which the paper's optimiser stops. The authors' protocol is the endpoint at which it stops, or the largest value
    where p < 0.001.
    """

    statistic: Statistic = "endpoint"
    protocol: Protocol = "paper"
    return_period: float = 1000.0

    def cells(self, samples: Floats, starts: Sequence[float], *, globally: bool = False) -> list[Cell]:
        """One cell per sample, each fitted uphill from its initial shape, or `globally`."""
        if self.protocol == "authors":
            return [self._as_authors(sample, start) for sample, start in zip(samples, starts, strict=True)]
        shapes = None if globally else np.asarray(starts, dtype=np.float64)
        fits = fit_many(samples, initial_shapes=shapes, return_period=self.return_period)
        return [
            Cell(self.constant(fit, sample, start), fit.ks_p_value or 0.0, fit.identified)
            for fit, sample, start in zip(fits, samples, starts, strict=True)
        ]

    def constant(self, fit: ReverseWeibullFit, sample: Floats, start: float) -> float:
        value = fit.endpoint if self.statistic == "endpoint" else fit.scale
        if fit.identified and value is not None:
            return value
        bound = fit.largest if fit.return_level is None else fit.return_level
        if self.statistic == "endpoint" or fit.return_level is None:  # a constant sample has no scale
            return bound
        stopped = stopping_point(sample, start)
        return stopped.scale if stopped.finite else bound

    @staticmethod
    def _as_authors(sample: Floats, start: float) -> Cell:
        stopped = stopping_point(sample, start)
        usable = stopped.finite and stopped.p_value >= _AUTHORS_SMALLEST_P
        return Cell(stopped.endpoint if usable else float(sample.max()), stopped.p_value, identified=False)


@dataclass(frozen=True, eq=False)
class HeatMap:
    """p-value, L and whether it is identified, for each M (rows), N (columns) and initial shape (depth)."""

    n_maxima: tuple[int, ...]
    n_points: tuple[int, ...]
    initial_shapes: tuple[float, ...]
    p_values: Floats
    constants: Floats
    identified: NDArray[np.bool_]

    def passing(self, alpha: float) -> list[tuple[int, int]]:
        """Indices (row, column) of the pairs with p-values on both sides of α: the paper's heuristic."""
        mixed = (self.p_values > alpha).any(axis=2) & (self.p_values < alpha).any(axis=2)
        return [(int(row), int(column)) for row, column in np.argwhere(mixed)]

    def best(self, row: int, column: int) -> int:
        """The initial shape with the largest p-value."""
        return int(self.p_values[row, column].argmax())

    def to_json(self) -> dict[str, Any]:
        return {
            "n_maxima": list(self.n_maxima),
            "n_points": list(self.n_points),
            "initial_shapes": list(self.initial_shapes),
            "p_values": self.p_values.tolist(),
            "constants": self.constants.tolist(),
            "identified": self.identified.tolist(),
        }


def heat_map(
    draw: Draw,
    reading: Reading = Reading(),  # noqa: B008
    *,
    n_maxima: Sequence[int] = PAPER_MAXIMA,  # M in the paper
    n_points: Sequence[int],  # N in the paper
    initial_shapes: Sequence[float] = PAPER_SHAPES,
    seed: int = 0,
) -> HeatMap:
    """Algorithm 1 for every (M, N) and initial shape, each on its own draws, as the algorithm's loops have it."""
    size = (len(n_maxima), len(n_points), len(initial_shapes))
    p_values, constants, identified = np.zeros(size), np.zeros(size), np.zeros(size, dtype=bool)
    for row, m in enumerate(n_maxima):
        samples = np.stack([drawn(draw, m, n, depth, seed) for n in n_points for depth in range(size[2])])
        cells = reading.cells(samples, list(initial_shapes) * len(n_points))
        constants[row] = np.reshape([cell.constant for cell in cells], size[1:])
        p_values[row] = np.reshape([cell.p_value for cell in cells], size[1:])
        identified[row] = np.reshape([cell.identified for cell in cells], size[1:])
    return HeatMap(tuple(n_maxima), tuple(n_points), tuple(initial_shapes), p_values, constants, identified)


def drawn(draw: Draw, m: int, n: int, depth: int, seed: int) -> Floats:
    """The draws of one cell, whichever grid it stands in."""
    return draw(m, n, np.random.default_rng((seed, m, n, depth)))
