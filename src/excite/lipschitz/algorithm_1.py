"""Algorithm 1: the largest possible slope, from the maxima of randomly drawn blocks of slopes.

M times, N points are drawn and paired, and the largest of the N/2 slopes is kept. A reverse Weibull is fitted to the M
maxima. There are three protocols:

- "fitted", the paper's method done right: the fit is the maximum of the likelihood, and L is its upper endpoint, which
  bounds the slopes (Fisher-Tippett-Gnedenko theorem), or a bound if the data do not determine an endpoint.
- "text", to the letter: one fit per initial shape, by an optimizer that starts there, with its own Kolmogorov-Smirnov
  p-value; L is the scale of the fit with the largest p-value.
- "authors", as the released code does it: gradients with respect to the pixels, slopes that combine gradients and
  parameters of different epochs, and the same fits, but L is the endpoint, or the largest maximum if p < 0.001.

The maxima come from the slopes of one run. The interval treats them as independent, so it is too narrow if M·N/2 is
much larger than the number of slopes.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Needs, Recording
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
Protocol = Literal["text", "fitted", "authors"]

PAPER_MAXIMA = (25, 55, 105, 155, 200)
PAPER_SHAPES = (0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
PAPER_MOMENTS = 164  # epochs behind the paper's Figure 5
PAPER_POINTS = (80, 100, 120, 150, 164)  # the values of N there
_METHODS = {"fitted": "epochs", "text": "epochs (the text)", "authors": "epochs (authors' protocol)"}
BLOCKS = (0.025, 0.035, 0.05, 0.07, 0.1)  # block sizes of `Local` as shares of all slopes; small, so that blocks differ
_AUTHORS_SMALLEST_P = 0.001
REDRAWS = 10
_SAME = 0.01  # the text's scale is identified if it is the proper fit's, up to this share


def secant_maxima(slopes: Floats) -> Draw:
    """Blocks of N distinct moments, paired at random; `slopes[i, j]` is the secant between moments i and j."""
    return lambda n_maxima, n_points, rng: slopes[_pairs(len(slopes), n_maxima, n_points, rng)].max(axis=1)


def unmatched_maxima(gradients: Floats, parameters: Floats) -> Draw:
    """Blocks of the released code: gradient distances and parameter distances of different pairs of moments."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        rise, run = (each[_pairs(len(each), n_maxima, n_points, rng)] for each in (gradients, parameters))
        largest: Floats = ratios(rise, run).max(axis=1)
        return largest

    return draw


def local_maxima(slopes: Floats) -> Draw:
    """Blocks of N/2 distinct slopes, each measured at one step; its two points are the ends of the step."""
    return lambda n_maxima, n_points, rng: slopes[_distinct(len(slopes), n_maxima, n_points // 2, rng)].max(axis=1)


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


class Cell(NamedTuple):
    constant: float  # NaN if there is no fit
    p_value: float
    identified: bool


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

    def pair(self, row: int, column: int) -> dict[str, float]:
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


@dataclass(frozen=True, kw_only=True)
class Algorithm1(Estimator[Trace]):
    """The options of Algorithm 1, for any kind of slopes. M and N are one number each, or several to choose from.

    A pair (M, N) passes if its p-values over the initial shapes are on both sides of α: the paper's heuristic. Of the
    pairs that pass (of all pairs, if none passes), the one with the largest p-value gives L. `details` of the estimate
    list these pairs, the spread of L over them, the heat map, and L from ten redraws of the chosen pair.
    """

    needs: ClassVar[Needs] = "trace"

    protocol: Protocol = field(default="fitted", init=False)
    n_maxima: int | Sequence[int] = PAPER_MAXIMA  # M in the paper
    n_points: int | Sequence[int] | None = None  # N in the paper
    initial_shapes: Sequence[float] = PAPER_SHAPES
    alpha: float = 0.55
    bootstraps: int = 199
    seed: int = 0

    def __post_init__(self) -> None:
        usable = min(_several(self.n_maxima), default=0) >= SMALLEST_SAMPLE and min(self.initial_shapes, default=0) > 0
        usable = usable and (self.n_points is None or min(_several(self.n_points), default=0) >= 2)
        if not (usable and 0 < self.alpha < 1 and self.bootstraps >= 0 and self.seed >= 0):
            raise InputError(
                f"M must be {SMALLEST_SAMPLE} or more (the fit has 3 parameters), N 2 or more (a slope needs two "
                f"points), initial shapes positive, alpha between 0 and 1, bootstraps and seed 0 or more, not {self}."
            )

    @abstractmethod
    def sizes(self, recording: Recording) -> tuple[int, set[int]]:
        """The largest N for which the recording is enough, and the values of N that are tried if `n_points` is None."""

    def check(self, recording: Recording) -> None:
        self.points(recording)

    def points(self, recording: Recording) -> tuple[int, ...]:
        """The values of N to choose from; InputError if the recording is not enough for them."""
        largest, usual = self.sizes(recording)
        points = tuple(sorted(usual)) if self.n_points is None else _several(self.n_points)
        if max(points) > largest:
            cure = f"Record longer or pass n_points={largest} or less."
            raise InputError(f"{recording.says} too little for blocks of N={max(points)}. {cure}")
        return points

    def heat_map(self, draw: Draw, n_points: Sequence[int]) -> HeatMap:
        """Algorithm 1 for every (M, N) and initial shape, each with its own draws."""
        maxima, shapes = _several(self.n_maxima), self.initial_shapes
        rows = []
        for m in maxima:
            samples = np.stack([self._sample(draw, m, n, depth) for n in n_points for depth in range(len(shapes))])
            rows.append(self._cells(samples, list(shapes) * len(n_points)))
        size = (len(maxima), len(n_points), len(shapes))
        constants, p_values, identified = (np.reshape(values, size) for values in np.array(rows).transpose(2, 0, 1))
        return HeatMap(maxima, tuple(n_points), tuple(shapes), p_values, constants, identified > 0)

    def _sample(self, draw: Draw, m: int, n: int, *address: int) -> Floats:
        """The maxima of one cell; they do not depend on the other cells."""
        return draw(m, n, np.random.default_rng((self.seed, m, n, *address)))

    def _cells(self, samples: Floats, initial_shapes: Sequence[float], *, globally: bool = False) -> list[Cell]:
        """L of each sample of block maxima, fitted from its initial shape; "fitted" may also search `globally`.

        "fitted" replaces an endpoint that the data do not determine by a bound, the value that one maximum in a
        thousand exceeds.
        """
        uphill = self.protocol == "fitted" and not globally
        shapes = np.asarray(initial_shapes, dtype=np.float64) if uphill else None
        fits = fit_reverse_weibull(samples, initial_shapes=shapes)
        if self.protocol == "fitted":
            return [Cell(fit.bound, fit.ks_p_value or 0.0, fit.identified) for fit in fits]
        return [
            self._stopped(fit, stopping_point(sample, shape))
            for fit, sample, shape in zip(fits, samples, initial_shapes, strict=True)
        ]

    def _stopped(self, fit: ReverseWeibullFit, point: StoppingPoint) -> Cell:
        """L where the optimizer stopped; `fit` is the proper fit of the same maxima."""
        if self.protocol == "authors":
            usable = point.finite and point.p_value >= _AUTHORS_SMALLEST_P
            return Cell(point.endpoint if usable else fit.largest, point.p_value, identified=False)
        if not point.finite:
            return Cell(math.nan, 0.0, identified=False)
        same = fit.scale is not None and math.isclose(point.scale, fit.scale, rel_tol=_SAME)
        return Cell(point.scale, point.p_value, fit.identified and same)

    def estimate(self, draw: Draw, *, method: str, largest_slope: float, n_points: Sequence[int]) -> LipschitzEstimate:
        """L of the pair (M, N) that the paper's heuristic chooses, and of every other passing pair."""
        cells = self.heat_map(draw, n_points)
        passing = cells.passing(self.alpha)
        pairs = {place: cells.pair(*place) for place in passing or np.ndindex(cells.p_values.shape[:2])}
        pairs = {place: pair for place, pair in pairs.items() if math.isfinite(pair["constant"])}
        if not pairs:
            raise InputError(
                "Algorithm 1 as written finds no reverse Weibull from any initial shape. "
                'Use protocol="fitted", which needs no initial shape, or draw smaller blocks (a smaller N).'
            )
        row, column = max(pairs, key=lambda place: pairs[place]["p_value"])
        depth = cells.best(row, column)
        m, n, shape = cells.n_maxima[row], n_points[column], float(self.initial_shapes[depth])
        sample = self._sample(draw, m, n, depth)
        [fit] = fit_reverse_weibull(sample[None], bootstraps=self.bootstraps, seed=self.seed)
        constants = [pair["constant"] for pair in pairs.values()]
        spread = (min(constants), max(constants))
        redrawn = np.stack([self._sample(draw, m, n, 0, 1 + number) for number in range(REDRAWS)])
        again = self._cells(redrawn, [shape] * REDRAWS, globally=True)
        redraws = [cell.constant for cell in again if math.isfinite(cell.constant)]
        details = {
            "M": m,
            "N": n,
            "alpha": self.alpha,
            "protocol": self.protocol,
            "fit": fit.to_json(),
            "largest_slope": largest_slope,
            "pairs": list(pairs.values()),
            "pairs_pass": bool(passing),
            "spread": list(spread),
            "redraws": redraws,
            "heat_map": cells.to_json(),
        }
        if self.protocol == "fitted":
            constant, identified = max(fit.bound, largest_slope), fit.identified
            p_value = fit.ks_p_value if fit.bootstrap_p_value is None else fit.bootstrap_p_value
            interval, basis = _endpoint_basis(fit, constant, largest_slope)
        else:
            point = stopping_point(sample, shape)
            details["stopping_point"] = point.to_json()
            constant, p_value, identified = self._stopped(fit, point)
            interval = min(constant, *redraws), max(constant, *redraws)
            basis = _stopping_basis(fit, point, self.protocol)
        context = (
            f"M = {m}, N = {n}; {len(passing)} of {cells.p_values[..., 0].size} (M, N) pass α = {self.alpha:g}, "
            f"L over {'them' if passing else 'all'} {spread[0]:.3g} to {spread[1]:.3g}; "
            f"ten redraws {min(redraws, default=constant):.3g} to {max(redraws, default=constant):.3g}"
        )
        return LipschitzEstimate(constant, interval, method, identified, f"{basis}; {context}", p_value, details)


@dataclass(frozen=True, kw_only=True)
class Epochs(Algorithm1):
    """‖∇l(θⁱ) − ∇l(θʲ)‖ / ‖θⁱ − θʲ‖ between two epochs; a block is N epochs, paired at random.

    By default, N takes the values of the paper's Figure 5, in proportion to the number of recorded epochs.
    """

    title: ClassVar[str] = "epochs (Algorithm 1, secants)"
    about: ClassVar[str] = "Algorithm 1 on secants between epochs of the baseline: fitted, as the text, or as released."

    protocol: Protocol = "fitted"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("protocol", Protocol, self.protocol)

    def sizes(self, recording: Recording) -> tuple[int, set[int]]:
        if recording.moments < 2:
            raise InputError(
                f"{recording.says} too few moments ({recording.moments}); a secant needs 2. "
                "Train for more epochs, with recorder.record() after each."
            )
        if self.protocol == "authors" and not recording.input_gradients:
            raise InputError(
                f'{recording.says} no gradients with respect to the pixels, which protocol="authors" uses. '
                "Set record.input_gradients = true, or Recorder(…, input_gradients=True)."
            )
        most = recording.moments // 2
        pairs = [round(points / PAPER_MOMENTS * recording.moments / 2) for points in PAPER_POINTS]
        return recording.moments, {2 * max(1, min(pair, most)) for pair in pairs}

    def __call__(self, evidence: Trace) -> LipschitzEstimate:
        points = self.points(Recording.of(evidence))
        if self.protocol == "authors":
            rise, run = evidence.input_gradient_distances, evidence.parameter_distances
            slopes, draw = ratios(rise, run), unmatched_maxima(rise, run)
        else:
            slopes = secants(evidence)
            draw = secant_maxima(slopes)
        return self.estimate(
            draw,
            method=_METHODS[self.protocol],
            largest_slope=float(slopes.max()),
            n_points=points,
        )


def secants(trace: Trace) -> NDArray[np.float64]:
    """‖∇l(θⁱ) − ∇l(θʲ)‖ / ‖θⁱ − θʲ‖ for every two moments, T×T; 0 if the parameters did not move."""
    return ratios(trace.gradient_distances, trace.parameter_distances)


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm1):
    """‖g_B(θᵏ⁺¹) − g_B(θᵏ)‖ / ‖θᵏ⁺¹ − θᵏ‖ at sampled steps, secants of the loss of one batch; N/2 per block."""

    title: ClassVar[str] = "local (Algorithm 1, single steps)"
    about: ClassVar[str] = "Algorithm 1 on the slopes of single steps, each for the loss of one batch."

    def sizes(self, recording: Recording) -> tuple[int, set[int]]:
        if recording.slopes == 0:
            raise InputError(
                f"{recording.says} no local slopes. Call recorder.after_step(closure) after each step; if you did, "
                "raise the learning rate: the steps were too small to change the gradient."
            )
        return 2 * recording.slopes, {2 * max(1, int(share * recording.slopes)) for share in BLOCKS}

    def __call__(self, evidence: Trace) -> LipschitzEstimate:
        points, slopes = self.points(Recording.of(evidence)), evidence.slopes
        return self.estimate(local_maxima(slopes), method="local", largest_slope=float(slopes.max()), n_points=points)


def _endpoint_basis(fit: ReverseWeibullFit, constant: float, largest_slope: float) -> tuple[tuple[float, float], str]:
    """The interval of L, and what L is based on."""
    if not fit.identified:
        to_bound = "The interval is from the largest slope to that bound"
        how = to_bound if fit.bound > largest_slope else f"L is the largest slope, {largest_slope:.4g}"
        return (largest_slope, constant), f"{fit.finding} {how}"
    low, high = (max(end, largest_slope) for end in fit.interval)
    rejected = fit.bootstrap_p_value is not None and fit.bootstrap_p_value < 0.05
    note = ", although the fit is rejected" if rejected else ""
    return (low, high), f"endpoint of a reverse Weibull with shape {fit.shape:.3g}{note}"


def _stopping_basis(fit: ReverseWeibullFit, point: StoppingPoint, protocol: Protocol) -> str:
    """What an L of the text or of the released code is based on."""
    name = "scale" if protocol == "text" else "endpoint (or largest maximum)"
    how = "stops" if point.converged else "stops, without having converged,"
    basis = f"the {name} where the optimizer {how} from an initial shape of {point.initial_shape:g}"
    return ("" if fit.identified else f"{fit.finding} L is ") + f"{basis}; its interval is that of ten redraws"


def _several(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)
