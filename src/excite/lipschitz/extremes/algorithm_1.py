"""Algorithm 1: the largest slope there is, from maxima of randomly drawn blocks of slopes.

M times, N points are drawn and paired, and the largest of the N/2 slopes is kept; a reverse Weibull is fitted to the
M maxima. `statistic="endpoint"` takes its upper end: by the Fisher-Tippett-Gnedenko theorem a bounded slope has block
maxima of this law, and the end is the bound. `statistic="scale"` takes the scale, as the paper's text says; it is the
distance from the bound to the bulk of the maxima and equals the bound only if that bulk lies near 0.

The M maxima come from the slopes of one run, so they share them. The interval takes them as independent and is too
narrow once M·N/2 is far beyond the number of slopes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.extremes.reverse_weibull import SMALLEST_SAMPLE, ReverseWeibullFit, fit_many, fit_reverse_weibull
from excite.lipschitz.extremes.stopping_point import StoppingPoint, stopping_point
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Needs
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
        return _largest(ratios(rise, run))

    return draw


def ratios(rise: Floats, run: Floats) -> Floats:
    """Slopes; 0 where nothing moved, and where a run had diverged."""
    finite = np.isfinite(rise) & np.isfinite(run) & (run > 0)
    return np.divide(rise, run, out=np.zeros_like(rise), where=finite)


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


class Fitted(NamedTuple):
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

    def cells(self, samples: Floats, starts: Sequence[float], *, globally: bool = False) -> list[Fitted]:
        """One cell per sample, each fitted uphill from its initial shape, or `globally`."""
        if self.protocol == "authors":
            return [self._as_authors(sample, start) for sample, start in zip(samples, starts, strict=True)]
        shapes = None if globally else np.asarray(starts, dtype=np.float64)
        fits = fit_many(samples, initial_shapes=shapes, return_period=self.return_period)
        return [
            Fitted(self.constant(fit, sample, start), fit.ks_p_value or 0.0, fit.identified)
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
    def _as_authors(sample: Floats, start: float) -> Fitted:
        stopped = stopping_point(sample, start)
        usable = stopped.finite and stopped.p_value >= _AUTHORS_SMALLEST_P
        return Fitted(stopped.endpoint if usable else float(sample.max()), stopped.p_value, identified=False)


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


@dataclass(frozen=True, kw_only=True)
class Algorithm1(Estimator[Trace]):
    """The options of Algorithm 1, whatever the slopes come from; M and N are one number or several to choose from.

    A pair (M, N) passes if its p-values over the initial shapes lie on both sides of α: the paper's heuristic. Of
    those that pass (of all, if none does) the one with the largest p-value gives L. The estimate's `details` list them
    all with the spread of L over them, the heat map behind it, and L from ten redraws of the chosen pair.
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
        if not self.maxima or min(self.maxima) < SMALLEST_SAMPLE:
            raise InputError(f"M must be {SMALLEST_SAMPLE} or more in {list(self.maxima)}: the fit has 3 parameters.")
        if self.n_points is not None and (not self.chosen_points or min(self.chosen_points) < 2):
            raise InputError(f"N must be 2 or more in {list(self.chosen_points)}: a slope needs two points.")
        if not self.initial_shapes or min(self.initial_shapes) <= 0:
            raise InputError(f"Initial shapes must be positive, not {list(self.initial_shapes)}.")
        if not (0 < self.alpha < 1 and 0 < self.level < 1):
            raise InputError(f"alpha and level lie between 0 and 1, not at {self.alpha} and {self.level}.")
        if not (self.return_period > 1 and self.bootstraps >= 0 and self.seed >= 0):
            raise InputError(
                "return_period must be above 1, bootstraps and seed 0 or more, not "
                f"{self.return_period}, {self.bootstraps} and {self.seed}."
            )

    @property
    def maxima(self) -> tuple[int, ...]:
        return _several(self.n_maxima)

    @property
    def chosen_points(self) -> tuple[int, ...]:
        """N as the user gave it; empty where it was left out."""
        return () if self.n_points is None else _several(self.n_points)

    def estimate(
        self,
        draw: Draw,
        *,
        method: str,
        largest_slope: float,
        n_points: Sequence[int],
        protocol: Protocol = "paper",
    ) -> LipschitzEstimate:
        """L from the pair (M, N) that the paper's heuristic picks, and what every other passing pair says."""
        reading = Reading(self.statistic, protocol, self.return_period)
        cells = heat_map(
            draw,
            reading,
            n_maxima=self.maxima,
            n_points=n_points,
            initial_shapes=self.initial_shapes,
            seed=self.seed,
        )
        passing = cells.passing(self.alpha)
        pairs = passing or [(row, column) for row in range(len(self.maxima)) for column in range(len(n_points))]
        row, column = max(pairs, key=lambda pair: float(cells.p_values[pair].max()))
        depth = cells.best(row, column)
        m, n, start = self.maxima[row], n_points[column], float(self.initial_shapes[depth])
        sample = drawn(draw, m, n, depth, self.seed)
        fit = fit_reverse_weibull(
            sample, level=self.level, return_period=self.return_period, bootstraps=self.bootstraps, seed=self.seed
        )
        listed = _listed(cells, pairs)
        spread = (min(pair["constant"] for pair in listed), max(pair["constant"] for pair in listed))
        redraws = [cell.constant for cell in reading.cells(self._redraws(draw, m, n), [start] * REDRAWS, globally=True)]
        details = {
            "M": m,
            "N": n,
            "alpha": self.alpha,
            "statistic": self.statistic,
            "protocol": protocol,
            "fit": fit.to_json(),
            "largest_slope": largest_slope,
            "pairs": listed,
            "pairs_pass": bool(passing),
            "spread": list(spread),
            "redraws": redraws,
            "heat_map": cells.to_json(),
        }
        share = f"{len(passing)} of {len(self.maxima) * len(n_points)} (M, N) pass α = {self.alpha:g}"
        context = (
            f"M = {m}, N = {n}; {share}, L over {'them' if passing else 'all'} {spread[0]:.3g} to {spread[1]:.3g}; "
            f"ten redraws {min(redraws):.3g} to {max(redraws):.3g}"
        )
        p_value = fit.ks_p_value if fit.bootstrap_p_value is None else fit.bootstrap_p_value
        if protocol == "authors":
            constant, p_value = float(cells.constants[row, column, depth]), float(cells.p_values[row, column, depth])
            interval = (min(spread[0], constant), max(spread[1], constant))
            basis = "where the released code's optimiser stops, interval = spread over (M, N)"
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
        return LipschitzEstimate(
            constant,
            interval,
            method,
            identified=fit.identified and protocol == "paper",
            basis=f"{basis}; {context}",
            p_value=p_value,
            details=details,
        )

    def _redraws(self, draw: Draw, m: int, n: int) -> Floats:
        return np.stack([draw(m, n, np.random.default_rng((self.seed, m, n, 0, 1 + i))) for i in range(REDRAWS)])


def _listed(cells: HeatMap, pairs: Sequence[tuple[int, int]]) -> list[dict[str, float]]:
    return [
        {
            "M": cells.n_maxima[row],
            "N": cells.n_points[column],
            "p_value": float(cells.p_values[row, column].max()),
            "constant": float(cells.constants[row, column, cells.best(row, column)]),
        }
        for row, column in pairs
    ]


def _endpoint(fit: ReverseWeibullFit, constant: float, largest_slope: float) -> tuple[tuple[float, float], str]:
    if not fit.identified:
        basis = f"{fit.finding} L is bounded by that; the interval starts at the largest slope"
        return (largest_slope, constant), basis
    low, high = (max(end, largest_slope) for end in fit.interval)
    return (low, high), f"endpoint of {_law(fit)}"


def _scale(fit: ReverseWeibullFit, stopped: StoppingPoint) -> str:
    if fit.identified:
        return f"scale of {_law(fit)}"
    if fit.return_level is None:
        return f"{fit.finding} The largest slope stands in for the scale, which a constant has not"
    start = f"from an initial shape of {stopped.initial_shape:g}"
    if not stopped.finite:
        return f"{fit.finding} The paper's optimiser stops nowhere {start}, and a bound on L stands in for the scale"
    return (
        f"{fit.finding} So the scale is not determined either: this is the scale at which the paper's optimiser stops "
        f"{start}"
    )


def _law(fit: ReverseWeibullFit) -> str:
    rejected = fit.bootstrap_p_value is not None and fit.bootstrap_p_value < 0.05
    return f"a reverse Weibull with shape {fit.shape:.3g}" + (", though the fit itself is rejected" if rejected else "")


def _several(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)
