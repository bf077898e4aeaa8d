"""Algorithm 1: the largest possible slope, from the maxima of randomly drawn blocks of slopes.

M times, N points are drawn and paired, and the largest of the N/2 slopes is kept. A reverse Weibull is fitted to the M
maxima. `statistic="endpoint"` takes its upper endpoint, which bounds the slopes (Fisher-Tippett-Gnedenko theorem).
`statistic="scale"` takes the scale, as in the paper's text: the distance from the bound to the bulk of the maxima.

The maxima come from the slopes of one run. The interval treats them as independent, so it is too narrow if M·N/2 is
much larger than the number of slopes.
"""

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
from excite.registry import check_choice
from excite.trace import Trace

Floats = NDArray[np.float64]
Draw = Callable[[int, int, np.random.Generator], Floats]  # (M, N, rng) -> M block maxima
Statistic = Literal["endpoint", "scale"]
Protocol = Literal["paper", "authors"]

PAPER_MAXIMA = (25, 55, 105, 155, 200)
PAPER_SHAPES = (0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_AUTHORS_SMALLEST_P = 0.001
REDRAWS = 10


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
    constant: float
    p_value: float
    identified: bool


@dataclass(frozen=True)
class Reading:
    """How to read L from M block maxima.

    It is the endpoint or the scale of the fitted reverse Weibull. If the maxima do not distinguish it from the Gumbel
    limit, the endpoint is replaced by a bound, the value exceeded once in `return_period` maxima, and the scale by the
    one at which the paper's optimizer stops. The authors' protocol takes the endpoint at which that optimizer stops, or
    the largest maximum if p < 0.001.
    """

    statistic: Statistic = "endpoint"
    protocol: Protocol = "paper"
    return_period: float = 1000.0

    def cells(self, samples: Floats, starts: Sequence[float], *, globally: bool = False) -> list[Cell]:
        """One cell per sample, fitted uphill from its initial shape, or `globally`."""
        if self.protocol == "authors":
            return [self._authors_cell(sample, start) for sample, start in zip(samples, starts, strict=True)]
        shapes = None if globally else np.asarray(starts, dtype=np.float64)
        fits = fit_reverse_weibull(samples, initial_shapes=shapes, return_period=self.return_period)
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
    def _authors_cell(sample: Floats, start: float) -> Cell:
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
        return {each.name: np.asarray(getattr(self, each.name)).tolist() for each in fields(self)}


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
    statistic: Statistic = "endpoint"
    level: float = 0.95
    return_period: float = 1000.0
    bootstraps: int = 199
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("statistic", Statistic, self.statistic)
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
        self, draw: Draw, *, method: str, largest_slope: float, n_points: Sequence[int], protocol: Protocol = "paper"
    ) -> LipschitzEstimate:
        """L of the pair (M, N) that the paper's heuristic chooses, and of every other passing pair."""
        reading = Reading(self.statistic, protocol, self.return_period)
        maxima = _several(self.n_maxima)
        cells = heat_map(
            draw, reading, n_maxima=maxima, n_points=n_points, initial_shapes=self.initial_shapes, seed=self.seed
        )
        passing = cells.passing(self.alpha)
        candidates = passing or [(i, j) for i in range(len(maxima)) for j in range(len(n_points))]
        row, column = max(candidates, key=lambda pair: float(cells.p_values[pair].max()))
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
        pairs = [cells.described(*pair) for pair in candidates]
        spread = (min(pair["constant"] for pair in pairs), max(pair["constant"] for pair in pairs))
        redrawn = np.stack([_drawn(draw, self.seed, m, n, 0, 1 + number) for number in range(REDRAWS)])
        redraws = [cell.constant for cell in reading.cells(redrawn, [start] * REDRAWS, globally=True)]
        details = {
            "M": m,
            "N": n,
            "alpha": self.alpha,
            "statistic": self.statistic,
            "protocol": protocol,
            "fit": fit.to_json(),
            "largest_slope": largest_slope,
            "pairs": pairs,
            "pairs_pass": bool(passing),
            "spread": list(spread),
            "redraws": redraws,
            "heat_map": cells.to_json(),
        }
        p_value = fit.ks_p_value if fit.bootstrap_p_value is None else fit.bootstrap_p_value
        if protocol == "authors":
            chosen = cells.described(row, column)
            constant, p_value = chosen["constant"], chosen["p_value"]
            interval = (min(spread[0], constant), max(spread[1], constant))
            basis = "where the released code's optimizer stops, interval = spread over (M, N)"
        elif self.statistic == "endpoint":
            constant = max(reading.constant(fit, sample, start), largest_slope)
            interval, basis = _endpoint(fit, constant, largest_slope)
        else:
            constant = reading.constant(fit, sample, start)
            interval = (min(constant, *redraws), max(constant, *redraws))
            stopped = stopping_point(sample, start)
            basis = f"{_scale(fit, stopped)}, interval = its ten redraws"
            if not fit.identified:
                details["stopping_point"] = stopped.to_json()
        context = (
            f"M = {m}, N = {n}; {len(passing)} of {len(maxima) * len(n_points)} (M, N) pass α = {self.alpha:g}, "
            f"L over {'them' if passing else 'all'} {spread[0]:.3g} to {spread[1]:.3g}; "
            f"ten redraws {min(redraws):.3g} to {max(redraws):.3g}"
        )
        identified = fit.identified and protocol == "paper"
        return LipschitzEstimate(constant, interval, method, identified, f"{basis}; {context}", p_value, details)


def _endpoint(fit: ReverseWeibullFit, constant: float, largest_slope: float) -> tuple[tuple[float, float], str]:
    """The interval of L, and what L is based on."""
    if not fit.identified:
        return (largest_slope, constant), f"{fit.finding} The interval is from the largest slope to that bound"
    low, high = (max(end, largest_slope) for end in fit.interval)
    return (low, high), f"endpoint of {_distribution(fit)}"


def _scale(fit: ReverseWeibullFit, stopped: StoppingPoint) -> str:
    """What L is based on."""
    if fit.identified:
        return f"scale of {_distribution(fit)}"
    if fit.return_level is None:
        return f"{fit.finding} The largest slope is used instead of the scale, because a constant sample has no scale"
    start = f"from an initial shape of {stopped.initial_shape:g}"
    if not stopped.finite:
        return f"{fit.finding} The paper's optimizer finds no scale {start}, so a bound on L is used instead"
    return f"{fit.finding} The scale is not identified either: it is where the paper's optimizer stops {start}"


def _distribution(fit: ReverseWeibullFit) -> str:
    rejected = fit.bootstrap_p_value is not None and fit.bootstrap_p_value < 0.05
    return f"a reverse Weibull with shape {fit.shape:.3g}" + (", although the fit is rejected" if rejected else "")


def _several(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)
