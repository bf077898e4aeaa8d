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
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.estimate import LipschitzEstimate
from excite.lipschitz.extremes.reverse_weibull import SMALLEST_SAMPLE, ReverseWeibullFit, fit_many, fit_reverse_weibull
from excite.lipschitz.protocol import Estimator, Needs
from excite.trace import Trace

Floats = NDArray[np.float64]
Draw = Callable[[int, int, np.random.Generator], Floats]  # (M, N, rng) -> M block maxima
Statistic = Literal["endpoint", "scale"]
Protocol = Literal["paper", "authors"]

PAPER_MAXIMA = (25, 55, 105, 155, 200)
PAPER_SHAPES = (0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
REDRAWS = 10
_AUTHORS_SMALLEST_P = 0.001


@dataclass(frozen=True, kw_only=True)
class Algorithm1(Estimator[Trace]):
    """The options of Algorithm 1, whatever the slopes come from: M and N are one number or several to choose from."""

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

    @property
    def _chosen_points(self) -> tuple[int, ...]:
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
        return estimate_from_maxima(
            draw,
            method=method,
            largest_slope=largest_slope,
            n_points=n_points,
            n_maxima=_several(self.n_maxima),
            initial_shapes=self.initial_shapes,
            alpha=self.alpha,
            statistic=self.statistic,
            protocol=protocol,
            level=self.level,
            return_period=self.return_period,
            bootstraps=self.bootstraps,
            seed=self.seed,
        )


def _several(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


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
    *,
    n_maxima: Sequence[int] = PAPER_MAXIMA,  # M in the paper
    n_points: Sequence[int],  # N in the paper
    initial_shapes: Sequence[float] = PAPER_SHAPES,
    statistic: Statistic = "endpoint",
    protocol: Protocol = "paper",
    return_period: float = 1000.0,
    seed: int = 0,
) -> HeatMap:
    """Algorithm 1 for every (M, N) and initial shape, each on its own draws, as the algorithm's loops have it."""
    size = (len(n_maxima), len(n_points), len(initial_shapes))
    p_values, constants, identified = np.zeros(size), np.zeros(size), np.zeros(size, dtype=bool)
    for row, m in enumerate(n_maxima):
        samples = np.stack([_draw(draw, m, n, shape, seed) for n in n_points for shape in range(size[2])])
        starts = np.tile(np.asarray(initial_shapes, dtype=np.float64), len(n_points))
        if protocol == "authors":
            cells = [_fit_as_authors(sample, float(start)) for sample, start in zip(samples, starts, strict=True)]
        else:
            fits = fit_many(samples, initial_shapes=starts, return_period=return_period)
            cells = [(_constant(fit, statistic), fit.ks_p_value or 0.0, fit.identified) for fit in fits]
        constants[row] = np.reshape([cell[0] for cell in cells], size[1:])
        p_values[row] = np.reshape([cell[1] for cell in cells], size[1:])
        identified[row] = np.reshape([cell[2] for cell in cells], size[1:])
    return HeatMap(tuple(n_maxima), tuple(n_points), tuple(initial_shapes), p_values, constants, identified)


def estimate_from_maxima(
    draw: Draw,
    *,
    method: str,
    largest_slope: float,
    n_points: Sequence[int],
    n_maxima: Sequence[int] = PAPER_MAXIMA,
    initial_shapes: Sequence[float] = PAPER_SHAPES,
    alpha: float = 0.55,
    statistic: Statistic = "endpoint",
    protocol: Protocol = "paper",
    level: float = 0.95,
    return_period: float = 1000.0,
    bootstraps: int = 199,
    seed: int = 0,
) -> LipschitzEstimate:
    """L from the pair (M, N) that the paper's heuristic picks, and what every other passing pair says.

    A pair passes if its p-values lie on both sides of α. Of those that pass (of all, if none does) the one with the
    largest p-value gives L; `details` lists them all with the spread of L over them, the heat map behind it, and L
    from ten redraws of the chosen pair.
    """
    _check(n_maxima, n_points, initial_shapes)
    options: dict[str, Any] = {"statistic": statistic, "protocol": protocol, "return_period": return_period}
    cells = heat_map(draw, n_maxima=n_maxima, n_points=n_points, initial_shapes=initial_shapes, seed=seed, **options)
    every = [(row, column) for row in range(len(n_maxima)) for column in range(len(n_points))]
    passing = cells.passing(alpha)
    pairs = passing or every
    row, column = max(pairs, key=lambda pair: float(cells.p_values[pair].max()))
    depth = cells.best(row, column)
    m, n = n_maxima[row], n_points[column]
    sample = _draw(draw, m, n, depth, seed)
    fit = fit_reverse_weibull(sample, level=level, return_period=return_period, bootstraps=bootstraps, seed=seed)
    listed = [
        {
            "M": n_maxima[i],
            "N": n_points[j],
            "p_value": float(cells.p_values[i, j].max()),
            "constant": float(cells.constants[i, j, cells.best(i, j)]),
        }
        for i, j in pairs
    ]
    spread = (min(pair["constant"] for pair in listed), max(pair["constant"] for pair in listed))
    redraws = _redraws(draw, m, n, seed, options)
    details = {
        "M": m,
        "N": n,
        "alpha": alpha,
        "statistic": statistic,
        "protocol": protocol,
        "fit": fit.to_json(),
        "largest_slope": largest_slope,
        "pairs": listed,
        "pairs_pass": bool(passing),
        "spread": list(spread),
        "redraws": redraws,
        "heat_map": cells.to_json(),
    }
    share = f"{len(passing)} of {len(every)} (M, N) pass α = {alpha:g}, L over {'them' if passing else 'all'}"
    context = (
        f"M = {m}, N = {n}; {share} {spread[0]:.3g} to {spread[1]:.3g}; "
        f"ten redraws {min(redraws):.3g} to {max(redraws):.3g}"
    )
    if protocol == "authors":
        constant = float(cells.constants[row, column, depth])
        p_value = float(cells.p_values[row, column, depth])
        interval = (min(spread[0], constant), max(spread[1], constant))
        basis = f"where the released code's optimiser stops, interval = spread over (M, N); {context}"
        return LipschitzEstimate(constant, interval, method, False, basis, p_value, details)
    interval, basis = _conclusion(fit, statistic, largest_slope)
    constant = _constant(fit, statistic)
    if statistic == "endpoint" or not fit.identified:
        constant = max(constant, largest_slope)
    p_value_or_none = fit.ks_p_value if fit.bootstrap_p_value is None else fit.bootstrap_p_value
    return LipschitzEstimate(
        constant, interval, method, fit.identified, f"{basis}; {context}", p_value_or_none, details
    )


def _distinct(n: int, blocks: int, size: int, rng: np.random.Generator) -> NDArray[np.int_]:
    if size > n:
        raise InputError(f"The trace holds {n} values; a block needs {size}. Record longer or pass a smaller N.")
    return rng.permuted(np.tile(np.arange(n), (blocks, 1)), axis=1)[:, :size]


def _largest(slopes: Floats) -> Floats:
    largest: Floats = slopes.max(axis=1)
    return largest


def _draw(draw: Draw, m: int, n: int, depth: int, seed: int) -> Floats:
    """The draws of one cell, whichever grid it stands in."""
    return draw(m, n, np.random.default_rng((seed, m, n, depth)))


def _constant(fit: ReverseWeibullFit, statistic: Statistic) -> float:
    value = fit.endpoint if statistic == "endpoint" else fit.scale
    if fit.identified and value is not None:
        return value
    return fit.largest if fit.return_level is None else fit.return_level


def _conclusion(fit: ReverseWeibullFit, statistic: Statistic, largest_slope: float) -> tuple[tuple[float, float], str]:
    if not fit.identified:
        bound = max(fit.return_level or fit.largest, largest_slope)
        return (largest_slope, bound), f"{fit.finding} L is bounded by that; the interval starts at the largest slope"
    low, high = (max(end, largest_slope) for end in fit.interval)
    rejected = fit.bootstrap_p_value is not None and fit.bootstrap_p_value < 0.05
    note = ", though the fit itself is rejected" if rejected else ""
    which = "endpoint" if statistic == "endpoint" else "scale (the interval is the endpoint's)"
    return (low, high), f"{which} of a reverse Weibull with shape {fit.shape:.3g}{note}"


def _redraws(draw: Draw, m: int, n: int, seed: int, options: dict[str, Any]) -> list[float]:
    samples = np.stack([draw(m, n, np.random.default_rng((seed, m, n, 0, 1 + i))) for i in range(REDRAWS)])
    if options["protocol"] == "authors":
        return [_fit_as_authors(sample, 1.0)[0] for sample in samples]
    fits = fit_many(samples, return_period=options["return_period"])
    return [_constant(fit, options["statistic"]) for fit in fits]


def _fit_as_authors(sample: Floats, initial_shape: float) -> tuple[float, float, bool]:
    """−loc of scipy's three-parameter fit by Nelder-Mead, wherever it stops, and its Kolmogorov-Smirnov p-value.

    The largest value instead where p < 0.001.
    """
    import warnings

    from scipy.optimize import fmin
    from scipy.stats import kstest, weibull_min

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        shape, location, scale = weibull_min.fit(-sample, initial_shape, optimizer=fmin)
        p_value = float(kstest(-sample, "weibull_min", args=(shape, location, scale)).pvalue)
    if not (np.isfinite(location) and p_value >= _AUTHORS_SMALLEST_P):
        return float(sample.max()), p_value if np.isfinite(p_value) else 0.0, False
    return float(-location), p_value, False


def _check(n_maxima: Sequence[int], n_points: Sequence[int], initial_shapes: Sequence[float]) -> None:
    if not n_maxima or min(n_maxima) < SMALLEST_SAMPLE:
        raise InputError(f"M must be {SMALLEST_SAMPLE} or more in {list(n_maxima)}: the fit has three parameters.")
    if not n_points or min(n_points) < 2:
        raise InputError(f"N must be 2 or more in {list(n_points)}: a slope needs two points.")
    if not initial_shapes or min(initial_shapes) <= 0:
        raise InputError(f"Initial shapes must be positive, not {list(initial_shapes)}.")
