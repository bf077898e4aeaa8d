"""Algorithm 1: the largest possible slope, from the maxima of randomly drawn blocks of slopes.

M times, N points are drawn and paired, and the largest of the N/2 slopes is kept. A reverse Weibull is fitted to the M
maxima. There are three protocols:

- "fitted", the paper's method done right: the fit is the maximum of the likelihood, and L is its upper endpoint, which
  bounds the slopes (Fisher-Tippett-Gnedenko theorem), or a bound if the data do not determine an endpoint.
- "text", to the letter: one fit per initial shape, by an optimizer that starts there, with its own Kolmogorov-Smirnov
  p-value; L is the scale of the fit with the largest p-value.
- "authors", as the released code does it: the same fits, but L is the endpoint, or the largest maximum if p < 0.001.

The maxima come from the slopes of one run. The interval treats them as independent, so it is too narrow if M·N/2 is
much larger than the number of slopes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Needs
from excite.lipschitz.reverse_weibull import (
    SMALLEST_SAMPLE,
    ReverseWeibullFit,
    StoppingPoint,
    fit_reverse_weibull,
    stopping_point,
)
from excite.trace import Trace

Floats = NDArray[np.float64]
Draw = Callable[[int, int, np.random.Generator], Floats]  # (M, N, rng) -> M block maxima
Protocol = Literal["text", "fitted", "authors"]

PAPER_MAXIMA = (25, 55, 105, 155, 200)
PAPER_SHAPES = (0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_AUTHORS_SMALLEST_P = 0.001
REDRAWS = 10
_SAME = 0.01  # the text's scale is identified if it is the proper fit's, up to this share


def secant_maxima(slopes: Floats) -> Draw:
    """Blocks of N distinct moments, paired at random; `slopes[i, j]` is the secant between moments i and j."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        return _largest(slopes[_pairs(len(slopes), n_maxima, n_points, rng)])

    return draw


def unmatched_maxima(gradients: Floats, parameters: Floats) -> Draw:
    """Blocks of the released code: gradient distances and parameter distances of different pairs of moments."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        rise, run = (each[_pairs(len(each), n_maxima, n_points, rng)] for each in (gradients, parameters))
        return _largest(ratios(rise, run))

    return draw


def local_maxima(slopes: Floats) -> Draw:
    """Blocks of N/2 distinct slopes, each measured at one step; its two points are the ends of the step."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        return _largest(slopes[_distinct(len(slopes), n_maxima, n_points // 2, rng)])

    return draw


def ratios(rise: Floats, run: Floats) -> Floats:
    """Slopes; 0 where the parameters did not move or are not finite."""
    finite = np.isfinite(rise) & np.isfinite(run) & (run > 0)
    return np.divide(rise, run, out=np.zeros_like(rise), where=finite)


def _pairs(n: int, blocks: int, size: int, rng: np.random.Generator) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    points = _distinct(n, blocks, size - size % 2, rng)
    return points[:, 0::2], points[:, 1::2]


def _distinct(n: int, blocks: int, size: int, rng: np.random.Generator) -> NDArray[np.int_]:
    if size > n:
        raise InputError(f"The trace holds {n} values; a block needs {size}. Record longer or pass a smaller N.")
    return rng.permuted(np.tile(np.arange(n), (blocks, 1)), axis=1)[:, :size]


def _largest(slopes: Floats) -> Floats:
    largest: Floats = slopes.max(axis=1)
    return largest


class Cell(NamedTuple):
    constant: float  # NaN if there is no fit
    p_value: float
    identified: bool


@dataclass(frozen=True)
class Reading:
    """How to read L from M block maxima: by one of the protocols above.

    "fitted" replaces an endpoint that the data do not determine by a bound, the value exceeded once in `return_period`
    maxima.
    """

    protocol: Protocol = "fitted"
    return_period: float = 1000.0

    def cells(self, samples: Floats, starts: Sequence[float], *, globally: bool = False) -> list[Cell]:
        """One cell per sample, fitted from its initial shape; "fitted" may also search `globally`."""
        uphill = self.protocol == "fitted" and not globally
        shapes = np.asarray(starts, dtype=np.float64) if uphill else None
        fits = fit_reverse_weibull(samples, initial_shapes=shapes, return_period=self.return_period)
        if self.protocol == "fitted":
            return [Cell(bound_of(fit), fit.ks_p_value or 0.0, fit.identified) for fit in fits]
        return [
            self.stopped(fit, stopping_point(sample, start))
            for fit, sample, start in zip(fits, samples, starts, strict=True)
        ]

    def stopped(self, fit: ReverseWeibullFit, point: StoppingPoint) -> Cell:
        """L where the optimizer stopped; `fit` is the proper fit of the same maxima."""
        if self.protocol == "authors":
            usable = point.finite and point.p_value >= _AUTHORS_SMALLEST_P
            return Cell(point.endpoint if usable else fit.largest, point.p_value, identified=False)
        if not point.finite:
            return Cell(math.nan, 0.0, identified=False)
        same = fit.scale is not None and math.isclose(point.scale, fit.scale, rel_tol=_SAME)
        return Cell(point.scale, point.p_value, fit.identified and same)


def bound_of(fit: ReverseWeibullFit) -> float:
    """The endpoint, or if it is not identified, a bound."""
    if fit.identified and fit.endpoint is not None:
        return fit.endpoint
    return fit.largest if fit.return_level is None else fit.return_level


@dataclass(frozen=True, eq=False)
class HeatMap:
    """p-value, L (NaN without a fit) and whether L is identified, for each M (rows), N (columns), initial shape."""

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
        """The initial shape with the largest p-value among those that gave an L."""
        usable = np.isfinite(self.constants[row, column])
        return int(np.where(usable, self.p_values[row, column], -1.0).argmax())

    def described(self, row: int, column: int) -> dict[str, float]:
        """M, N, their largest p-value and the L that goes with it."""
        depth = self.best(row, column)
        return {
            "M": self.n_maxima[row],
            "N": self.n_points[column],
            "p_value": float(self.p_values[row, column, depth]),
            "constant": float(self.constants[row, column, depth]),
        }

    def to_json(self) -> dict[str, Any]:
        constants = self.constants.astype(object)
        constants[~np.isfinite(self.constants)] = None
        values = {each.name: np.asarray(getattr(self, each.name)).tolist() for each in fields(self)}
        return values | {"constants": constants.tolist()}


def heat_map(
    draw: Draw,
    reading: Reading = Reading(),  # noqa: B008
    *,
    n_maxima: Sequence[int] = PAPER_MAXIMA,  # M in the paper
    n_points: Sequence[int],  # N in the paper
    initial_shapes: Sequence[float] = PAPER_SHAPES,
    seed: int = 0,
) -> HeatMap:
    """Algorithm 1 for every (M, N) and initial shape, each with its own draws."""
    rows = []
    for m in n_maxima:
        depths = range(len(initial_shapes))
        samples = np.stack([_drawn(draw, seed, m, n, depth) for n in n_points for depth in depths])
        rows.append(reading.cells(samples, list(initial_shapes) * len(n_points)))
    size = (len(n_maxima), len(n_points), len(initial_shapes))
    constants, p_values, identified = (np.reshape(values, size) for values in np.array(rows).transpose(2, 0, 1))
    return HeatMap(tuple(n_maxima), tuple(n_points), tuple(initial_shapes), p_values, constants, identified > 0)


def _drawn(draw: Draw, seed: int, m: int, n: int, *address: int) -> Floats:
    """The maxima of one cell; they do not depend on the other cells."""
    return draw(m, n, np.random.default_rng((seed, m, n, *address)))


@dataclass(frozen=True, kw_only=True)
class Algorithm1(Estimator[Trace]):
    """The options of Algorithm 1, for any kind of slopes. M and N are one number each, or several to choose from.

    A pair (M, N) passes if its p-values over the initial shapes are on both sides of α: the paper's heuristic. Of the
    pairs that pass (of all pairs, if none passes), the one with the largest p-value gives L. `details` of the estimate
    list these pairs, the spread of L over them, the heat map, and L from ten redraws of the chosen pair.
    """

    needs: ClassVar[Needs] = "trace"

    n_maxima: int | Sequence[int] = PAPER_MAXIMA  # M in the paper
    n_points: int | Sequence[int] | None = None  # N in the paper
    initial_shapes: Sequence[float] = PAPER_SHAPES
    alpha: float = 0.55
    level: float = 0.95
    return_period: float = 1000.0
    bootstraps: int = 199
    seed: int = 0

    def __post_init__(self) -> None:
        maxima, points = _several(self.n_maxima), self.chosen_points
        if not maxima or min(maxima) < SMALLEST_SAMPLE:
            raise InputError(f"M must be {SMALLEST_SAMPLE} or more in {list(maxima)}: the fit has 3 parameters.")
        if self.n_points is not None and (not points or min(points) < 2):
            raise InputError(f"N must be 2 or more in {list(points)}: a slope needs two points.")
        if not self.initial_shapes or min(self.initial_shapes) <= 0:
            raise InputError(f"Initial shapes must be positive, not {list(self.initial_shapes)}.")
        if not (0 < self.alpha < 1 and 0 < self.level < 1):
            raise InputError(f"alpha and level must be between 0 and 1, not {self.alpha} and {self.level}.")
        if not (self.return_period > 1 and self.bootstraps >= 0 and self.seed >= 0):
            raise InputError(
                "return_period must be above 1, bootstraps and seed 0 or more, not "
                f"{self.return_period}, {self.bootstraps} and {self.seed}."
            )

    @property
    def chosen_points(self) -> tuple[int, ...]:
        """N as given by the user; empty if it was left out."""
        return () if self.n_points is None else _several(self.n_points)

    def estimate(
        self, draw: Draw, *, method: str, largest_slope: float, n_points: Sequence[int], protocol: Protocol = "fitted"
    ) -> LipschitzEstimate:
        """L of the pair (M, N) that the paper's heuristic chooses, and of every other passing pair."""
        reading = Reading(protocol, self.return_period)
        maxima = _several(self.n_maxima)
        cells = heat_map(
            draw, reading, n_maxima=maxima, n_points=n_points, initial_shapes=self.initial_shapes, seed=self.seed
        )
        passing = cells.passing(self.alpha)
        candidates = passing or [(i, j) for i in range(len(maxima)) for j in range(len(n_points))]
        described = {pair: cells.described(*pair) for pair in candidates}
        usable = [pair for pair in candidates if math.isfinite(described[pair]["constant"])]
        if not usable:
            raise InputError(
                "Algorithm 1 as written has no L here: its optimizer finds no reverse Weibull from any initial shape. "
                'Use protocol="fitted", which needs no initial shape, or draw smaller blocks (a smaller N).'
            )
        row, column = max(usable, key=lambda pair: described[pair]["p_value"])
        depth = cells.best(row, column)
        m, n, start = maxima[row], n_points[column], float(self.initial_shapes[depth])
        sample = _drawn(draw, self.seed, m, n, depth)
        [fit] = fit_reverse_weibull(
            sample[None],
            level=self.level,
            return_period=self.return_period,
            bootstraps=self.bootstraps,
            seed=self.seed,
        )
        pairs = [described[pair] for pair in usable]
        spread = (min(pair["constant"] for pair in pairs), max(pair["constant"] for pair in pairs))
        redrawn = np.stack([_drawn(draw, self.seed, m, n, 0, 1 + number) for number in range(REDRAWS)])
        again = reading.cells(redrawn, [start] * REDRAWS, globally=True)
        redraws = [cell.constant for cell in again if math.isfinite(cell.constant)]
        details = {
            "M": m,
            "N": n,
            "alpha": self.alpha,
            "protocol": protocol,
            "fit": fit.to_json(),
            "largest_slope": largest_slope,
            "pairs": pairs,
            "pairs_pass": bool(passing),
            "spread": list(spread),
            "redraws": redraws,
            "heat_map": cells.to_json(),
        }
        if protocol == "fitted":
            constant, identified = max(bound_of(fit), largest_slope), fit.identified
            p_value = fit.ks_p_value if fit.bootstrap_p_value is None else fit.bootstrap_p_value
            interval, basis = _endpoint(fit, constant, largest_slope)
        else:
            point = stopping_point(sample, start)
            details["stopping_point"] = point.to_json()
            constant, p_value, identified = reading.stopped(fit, point)
            interval, basis = (min(constant, *redraws), max(constant, *redraws)), _stopped(fit, point, protocol)
        context = (
            f"M = {m}, N = {n}; {len(passing)} of {len(maxima) * len(n_points)} (M, N) pass α = {self.alpha:g}, "
            f"L over {'them' if passing else 'all'} {spread[0]:.3g} to {spread[1]:.3g}; "
            f"ten redraws {min(redraws, default=constant):.3g} to {max(redraws, default=constant):.3g}"
        )
        return LipschitzEstimate(constant, interval, method, identified, f"{basis}; {context}", p_value, details)


def _endpoint(fit: ReverseWeibullFit, constant: float, largest_slope: float) -> tuple[tuple[float, float], str]:
    """The interval of L, and what L is based on."""
    if not fit.identified:
        return (largest_slope, constant), f"{fit.finding} The interval is from the largest slope to that bound"
    low, high = (max(end, largest_slope) for end in fit.interval)
    rejected = fit.bootstrap_p_value is not None and fit.bootstrap_p_value < 0.05
    note = ", although the fit is rejected" if rejected else ""
    return (low, high), f"endpoint of a reverse Weibull with shape {fit.shape:.3g}{note}"


def _stopped(fit: ReverseWeibullFit, point: StoppingPoint, protocol: Protocol) -> str:
    """What an L of the text or of the released code is based on."""
    name = "scale" if protocol == "text" else "endpoint (or largest maximum)"
    how = "stops" if point.converged else "stops, without having converged,"
    basis = f"the {name} where the optimizer {how} from an initial shape of {point.initial_shape:g}"
    return ("" if fit.identified else f"{fit.finding} L is ") + f"{basis}; its interval is that of ten redraws"


def _several(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)
