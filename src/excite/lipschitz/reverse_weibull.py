"""Fit a reverse Weibull to block maxima; its endpoint bounds the slopes, if the data identify one.

A reverse Weibull ends at c: F(x) = exp(−((c − x)/scale)^shape) for x ≤ c. For a given c the other two parameters are
one root, so the whole fit is a search over c alone. In units of the mean gap below the largest maximum, with r that
gap and δ = c − largest, let u = δ log(1 + r/δ). Then (c − x)/scale to the power shape is exp(t (u − m)), where

    1/t = Σ u e^{tu} / Σ e^{tu} − mean(u),    m = log(mean e^{tu}) / t,    shape = t δ,    scale = δ e^{m/δ}.

As δ → ∞, u → r and the same equation gives the Gumbel distribution: the limit is one more point of the search, not a
place where an optimiser gets lost. As δ → 0 the likelihood of shapes below 1 grows without bound; shapes are held at 1
and above, where it is bounded and ends in an exponential at δ = 0.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError

Floats = NDArray[np.float64]

SMALLEST_SAMPLE = 3
_GAPS = np.logspace(-6, 5, 34)  # the grid of δ, in mean gaps; 0 and ∞ are added at its ends
_GRID = np.concatenate([[0.0], _GAPS, [np.inf]])
_ZOOMS, _ZOOM_POINTS = 7, 11
_CHUNK = 2_000_000  # numbers in flight at once
_TIE = 1e-7  # log-likelihoods closer than this cannot be told apart


@dataclass(frozen=True)
class ReverseWeibullFit:
    """What M block maxima say about the largest value there is.

    `endpoint`, `scale` and `shape` are None where the likelihood has no finite maximum. `identified` is whether a
    finite endpoint is preferred to the Gumbel limit, which is when the profile interval has a finite upper end.
    The interval holds its level for shapes of 2 and more; below 2 the likelihood is not regular.
    `return_level` is the value that a Gumbel fit exceeds once in `return_period` maxima: the bound to use instead.
    """

    n_maxima: int  # M in the paper
    largest: float
    endpoint: float | None
    scale: float | None
    shape: float | None
    interval: tuple[float, float]
    identified: bool
    ks_p_value: float | None
    bootstrap_p_value: float | None
    return_period: float
    return_level: float | None
    finding: str

    def __str__(self) -> str:
        return self.finding

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return asdict(self) | {"interval": [low, high if math.isfinite(high) else None]}


def fit_reverse_weibull(
    maxima: Floats,
    *,
    initial_shape: float | None = None,
    level: float = 0.95,
    bootstraps: int = 199,
    return_period: float = 1000.0,
    seed: int = 0,
) -> ReverseWeibullFit:
    """Fit one sample of block maxima by maximum likelihood.

    Without `initial_shape` the fit is the global maximum; with it, the local maximum that is reached uphill from the
    endpoint at which that shape fits best, as the paper's heat maps show it.
    `ks_p_value` is the paper's Kolmogorov-Smirnov p-value. It takes the fitted parameters for known ones and is too
    large; `bootstrap_p_value` simulates from the fit, refits, and is a valid test (None with `bootstraps=0`).
    """
    sample = np.asarray(maxima, dtype=np.float64)
    shapes = None if initial_shape is None else np.array([initial_shape])
    return fit_many(
        sample[None],
        initial_shapes=shapes,
        level=level,
        bootstraps=bootstraps,
        return_period=return_period,
        seed=seed,
    )[0]


def fit_many(
    samples: Floats,
    *,
    initial_shapes: Floats | None = None,
    level: float = 0.95,
    bootstraps: int = 0,
    return_period: float = 1000.0,
    seed: int = 0,
) -> list[ReverseWeibullFit]:
    """`fit_reverse_weibull` for each row of `samples`, many times faster than row by row."""
    samples = np.asarray(samples, dtype=np.float64)
    if samples.ndim != 2 or samples.shape[1] < SMALLEST_SAMPLE:
        raise InputError(
            f"A reverse Weibull has three parameters; a sample of shape {samples.shape[1:]} is too small. "
            f"Pass M = {SMALLEST_SAMPLE} or more block maxima."
        )
    if not np.isfinite(samples).all():
        raise InputError("The block maxima hold NaN or infinite values; leave out the slopes of a diverged run.")
    n_maxima = samples.shape[1]
    # Dividing first keeps the gaps of huge samples finite and those of tiny ones exact.
    magnitude = np.abs(samples).max(axis=1)
    scaled = samples / np.where(magnitude > 0, magnitude, 1.0)[:, None]
    gaps = scaled.max(axis=1, keepdims=True) - scaled
    mean_gap = gaps.mean(axis=1)
    varies = mean_gap > 0
    standard = gaps[varies] / mean_gap[varies, None]
    fits = _fit(standard, None if initial_shapes is None else np.asarray(initial_shapes, dtype=np.float64)[varies])
    distances = _ks_distance(standard, fits)
    ks_p_values = _ks_p_value(distances, n_maxima)
    lower, upper = _interval(standard, fits, level)

    def describe(row: int, index: int) -> ReverseWeibullFit:
        fit = _Fit(*(values[row] for values in fits))
        bootstrap_p_value = None
        if bootstraps:
            rng = np.random.default_rng((seed, index))
            bootstrap_p_value = _bootstrap_p_value(fit, float(distances[row]), n_maxima, bootstraps, rng)
        return _describe(
            fit,
            top=float(samples[index].max()),
            unit=float(mean_gap[index] * magnitude[index]),
            n_maxima=n_maxima,
            bounds=(float(lower[row]), float(upper[row])),
            p_values=(float(ks_p_values[row]), bootstrap_p_value),
            return_period=return_period,
        )

    rows = np.cumsum(varies) - 1  # of `standard`
    return [
        describe(int(rows[index]), index)
        if varies[index]
        else _constant(n_maxima, float(samples[index, 0]), return_period)
        for index in range(len(samples))
    ]


class _Fit(NamedTuple):
    """Fitted parameters in mean gaps below the largest maximum: one number each, or one per sample."""

    gap: Floats  # δ; 0: exponential, inf: Gumbel
    rate: Floats  # t
    location: Floats  # m
    log_likelihood: Floats
    best: Floats  # the global maximum of the log-likelihood
    profile: Floats  # its values over _GRID
    gumbel_rate: Floats
    gumbel_location: Floats


def _profile(gaps: Floats, deltas: Floats) -> tuple[Floats, Floats, Floats]:
    """Rate, location and log-likelihood of samples (B, M) at endpoints (B, G), shapes held at 1 and above."""
    parts = max(1, math.ceil(gaps.size * deltas.shape[1] / _CHUNK))
    pieces = [
        _profile_chunk(g, d) for g, d in zip(np.array_split(gaps, parts), np.array_split(deltas, parts), strict=True)
    ]
    return (
        np.concatenate([piece[0] for piece in pieces]),
        np.concatenate([piece[1] for piece in pieces]),
        np.concatenate([piece[2] for piece in pieces]),
    )


def _profile_chunk(gaps: Floats, deltas: Floats) -> tuple[Floats, Floats, Floats]:
    finite = np.isfinite(deltas)
    curvature = np.where(finite, 1 / np.where(deltas > 0, deltas, 1.0), 0.0)  # 1/δ
    u = _log_gaps(gaps[:, None, :], deltas[:, :, None])
    rate = np.maximum(_root(u), curvature)
    top = u.max(axis=-1)
    location = top + np.log(np.exp(rate[..., None] * (u - top[..., None])).mean(axis=-1)) / rate
    mean = u.mean(axis=-1)
    log_likelihood = gaps.shape[1] * (np.log(rate) + rate * (mean - location) - 1 - curvature * mean)
    exponential = deltas == 0
    return (
        np.where(exponential, 1.0, rate),
        np.where(exponential, 0.0, location),
        np.where(exponential, -float(gaps.shape[1]), log_likelihood),
    )


def _log_gaps(gaps: Floats, deltas: Floats) -> Floats:
    """u = δ log(1 + r/δ), which is r at δ = ∞ (and, by convention, at δ = 0, where it is not used)."""
    interior = np.isfinite(deltas) & (deltas > 0)
    safe = np.where(interior, deltas, 1.0)
    bent: Floats = np.where(interior, safe * np.log1p(gaps / safe), gaps)
    return bent


def _root(u: Floats) -> Floats:
    """The t with 1/t = Σ u e^{tu}/Σ e^{tu} − mean(u), over the last axis, by Newton's method in log t."""
    below = u - u.max(axis=-1, keepdims=True)
    mean = below.mean(axis=-1)
    log_rate = np.log(math.pi / math.sqrt(6) / below.std(axis=-1))
    for _ in range(60):
        rate = np.exp(log_rate)
        weight = np.exp(rate[..., None] * below)
        total = weight.sum(axis=-1)
        weight *= below
        tilted = weight.sum(axis=-1) / total
        spread = np.einsum("...m,...m->...", weight, below) / total - tilted**2
        excess = tilted - mean
        step = np.clip(-(log_rate + np.log(excess)) / (1 + rate * spread / excess), -2.0, 2.0)
        log_rate = log_rate + step
        if np.abs(step).max(initial=0.0) < 1e-6:  # and Newton's next error is its square
            break
    solved: Floats = np.exp(log_rate)
    return solved


def _fit(gaps: Floats, initial_shapes: Floats | None) -> _Fit:
    """The best endpoint of each sample: a grid over δ, then zooms into the cell around its best point."""
    n_samples = len(gaps)
    rate, location, likelihood = _profile(gaps, np.tile(_GRID, (n_samples, 1)))
    # An endpoint that the likelihood cannot tell from infinity is at infinity.
    likelihood[:, -1] += _TIE
    best = likelihood.argmax(axis=1)
    if initial_shapes is not None:
        starts = np.argmax(rate[:, 1:-1] * _GAPS >= initial_shapes[:, None], axis=1) + 1
        never = (rate[:, -2] * _GAPS[-1] < initial_shapes) & (initial_shapes > 1)
        starts = np.where(never, len(_GRID) - 1, starts)
        best = np.array([_uphill(row, int(start)) for row, start in zip(likelihood, starts, strict=True)], dtype=int)
    everyone = np.arange(n_samples)
    chosen = [_GRID[best], rate[everyone, best], location[everyone, best], likelihood[everyone, best]]
    inside = (best > 0) & (best < len(_GRID) - 1)
    if inside.any():
        zoomed = _zoom(gaps[inside], best[inside] - 1)
        for values, better in zip(chosen, zoomed, strict=True):
            values[inside] = better
    return _Fit(
        gap=chosen[0],
        rate=chosen[1],
        location=chosen[2],
        log_likelihood=chosen[3],
        best=np.maximum(likelihood.max(axis=1, initial=-np.inf), chosen[3]),
        profile=likelihood,
        gumbel_rate=rate[:, -1],
        gumbel_location=location[:, -1],
    )


def _uphill(values: Floats, index: int) -> int:
    while True:
        neighbours = [i for i in (index - 1, index + 1) if 0 <= i < len(values) and values[i] > values[index]]
        if not neighbours:
            return index
        index = max(neighbours, key=lambda i: float(values[i]))


def _zoom(gaps: Floats, cells: NDArray[np.int_]) -> tuple[Floats, Floats, Floats, Floats]:
    everyone = np.arange(len(gaps))
    step = math.log(_GAPS[1] / _GAPS[0])
    centre = np.log(_GAPS[cells])
    for _ in range(_ZOOMS):
        logs = centre[:, None] + np.linspace(-step, step, _ZOOM_POINTS)
        rate, location, likelihood = _profile(gaps, np.exp(logs))
        best = likelihood.argmax(axis=1)
        centre = logs[everyone, best]
        step *= 2 / (_ZOOM_POINTS - 1)
    return np.exp(centre), rate[everyone, best], location[everyone, best], likelihood[everyone, best]


def _interval(gaps: Floats, fits: _Fit, level: float) -> tuple[Floats, Floats]:
    """All δ whose log-likelihood is within half a χ²₁ quantile of the best."""
    from scipy.special import chdtri

    cut = fits.best - float(chdtri(1, 1 - level)) / 2
    inside = fits.profile >= cut[:, None]
    # The fitted point itself is inside, even where it lies between two grid points that are not.
    known = fits.log_likelihood >= cut
    nearest = np.clip(np.searchsorted(_GRID, fits.gap), 1, len(_GRID) - 1)
    first = np.where(inside.any(axis=1), inside.argmax(axis=1), nearest)
    last = np.where(inside.any(axis=1), len(_GRID) - 1 - inside[:, ::-1].argmax(axis=1), nearest - 1)
    low_in = np.where(known, np.minimum(_GRID[first], fits.gap), _GRID[first])
    high_in = np.where(known, np.maximum(_GRID[last], fits.gap), _GRID[last])
    low_out = _GRID[np.maximum(np.searchsorted(_GRID, low_in) - 1, 0)]
    high_out = _GRID[np.minimum(np.searchsorted(_GRID, high_in, side="right"), len(_GRID) - 1)]
    lower, upper = np.zeros(len(gaps)), np.full(len(gaps), np.inf)
    cuts_low, cuts_high = ~inside[:, 0], ~inside[:, -1]
    lower[cuts_low] = _crossing(gaps[cuts_low], cut[cuts_low], low_out[cuts_low], low_in[cuts_low])
    upper[cuts_high] = _crossing(gaps[cuts_high], cut[cuts_high], high_out[cuts_high], high_in[cuts_high])
    return lower, upper


def _crossing(gaps: Floats, cut: Floats, outside: Floats, inside: Floats) -> Floats:
    """Where the profile crosses `cut` between a δ below it and one above it, by repeated fourfold division of log δ."""
    low, high = (np.log(np.clip(end, _GAPS[0] / 10, _GAPS[-1] * 10)) for end in (outside, inside))
    everyone = np.arange(len(gaps))
    share = np.linspace(0, 1, 5)
    for _ in range(10):
        logs = low[:, None] + (high - low)[:, None] * share
        above = _profile(gaps, np.exp(logs))[2] >= cut[:, None]
        above[:, -1] = True
        first = np.maximum(above.argmax(axis=1), 1)
        low, high = logs[everyone, first - 1], logs[everyone, first]
    crossing: Floats = np.exp(low)
    return crossing


def _exponent(gaps: Floats, fits: _Fit) -> Floats:
    """((c − x)/scale)^shape for samples (B, M): the distribution function is exp(−this)."""
    u = _log_gaps(gaps, fits.gap[:, None])
    power = np.exp(np.minimum(fits.rate[:, None] * (u - fits.location[:, None]), 700.0))
    exponent: Floats = np.where(fits.gap[:, None] == 0, gaps, power)
    return exponent


def _ks_distance(gaps: Floats, fits: _Fit) -> Floats:
    n = gaps.shape[1]
    cdf = np.exp(-np.sort(_exponent(gaps, fits), axis=1)[:, ::-1])
    steps = np.arange(n + 1) / n
    distance: Floats = np.maximum(steps[1:] - cdf, cdf - steps[:-1]).max(axis=1)
    return distance


def _ks_p_value(distance: Floats, n: int) -> Floats:
    from scipy.stats import kstwo

    p_value: Floats = np.clip(kstwo.sf(distance, n), 0.0, 1.0)
    return p_value


def _bootstrap_p_value(fit: _Fit, distance: float, n: int, bootstraps: int, rng: np.random.Generator) -> float:
    """Share of samples drawn from the fit that lie at least as far from their own fit."""
    log_exponent = np.log(rng.standard_exponential((bootstraps, n)))
    u = fit.location + log_exponent / fit.rate
    if fit.gap == 0:
        below = np.exp(log_exponent)
    elif math.isinf(fit.gap):
        below = u
    else:
        below = fit.gap * np.expm1(u / fit.gap)
    gaps = below - below.min(axis=1, keepdims=True)
    gaps /= gaps.mean(axis=1, keepdims=True)
    distances = _ks_distance(gaps, _fit(gaps, None))
    return float((1 + (distances >= distance).sum()) / (bootstraps + 1))


def _describe(
    fit: _Fit,
    *,
    top: float,
    unit: float,
    n_maxima: int,
    bounds: tuple[float, float],
    p_values: tuple[float, float | None],
    return_period: float,
) -> ReverseWeibullFit:
    gap, rate, location = float(fit.gap), float(fit.rate), float(fit.location)
    interval = (top + unit * bounds[0], top + unit * bounds[1])
    at_limit, at_largest = math.isinf(gap), gap == 0
    highest = bounds[0] <= gap <= bounds[1]
    identified = highest and math.isfinite(bounds[1]) and not at_limit and not at_largest
    return_gap = float(fit.gumbel_location) + math.log(-math.log1p(-1 / return_period)) / float(fit.gumbel_rate)
    return_level = max(top, top - unit * return_gap)
    endpoint = None if at_limit else top + unit * gap
    shape = None if at_limit else (1.0 if at_largest else rate * gap)
    scale = None if at_limit else unit * (1.0 if at_largest else gap * math.exp(min(location / gap, 700.0)))
    start = f"The largest of {n_maxima} maxima is {top:.4g}"
    if identified:
        finding = (
            f"{start} and they end at {endpoint:.4g} ({interval[0]:.4g} to {interval[1]:.4g}), with shape {shape:.3g}"
        )
    elif not highest:
        finding = f"{start}; the likelihood is far higher elsewhere than at the maximum next to this initial shape"
    elif at_largest:
        finding = f"{start}; they pile up there (shape at or below 1), which does not identify an endpoint"
    else:
        finding = f"{start}; they do not tell a finite endpoint from the Gumbel limit"
    if not identified:
        finding += f". Instead: one maximum in {return_period:g} exceeds {return_level:.4g}"
    return ReverseWeibullFit(
        n_maxima=n_maxima,
        largest=top,
        endpoint=endpoint,
        scale=scale,
        shape=shape,
        interval=interval,
        identified=identified,
        ks_p_value=p_values[0],
        bootstrap_p_value=p_values[1],
        return_period=return_period,
        return_level=return_level,
        finding=finding + ".",
    )


def _constant(n_maxima: int, value: float, return_period: float) -> ReverseWeibullFit:
    return ReverseWeibullFit(
        n_maxima=n_maxima,
        largest=value,
        endpoint=None,
        scale=None,
        shape=None,
        interval=(value, math.inf),
        identified=False,
        ks_p_value=None,
        bootstrap_p_value=None,
        return_period=return_period,
        return_level=None,
        finding=f"All {n_maxima} maxima are {value:.4g}: a constant sample says nothing about an endpoint beyond it. "
        "Draw smaller blocks (a smaller N) or record more slopes.",
    )
