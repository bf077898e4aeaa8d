"""Fit a reverse Weibull to block maxima; its endpoint bounds the slopes, if the data identify one."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.extremes.profile_likelihood import ProfileFit, fit_profile, ks_distance, profile_interval

Floats = NDArray[np.float64]

SMALLEST_SAMPLE = 3


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
    fits = fit_profile(
        standard, None if initial_shapes is None else np.asarray(initial_shapes, dtype=np.float64)[varies]
    )
    distances = ks_distance(standard, fits)
    ks_p_values = _ks_p_value(distances, n_maxima)
    lower, upper = profile_interval(standard, fits, level)

    def describe(row: int, index: int) -> ReverseWeibullFit:
        fit = ProfileFit(*(values[row] for values in fits))
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


def _ks_p_value(distance: Floats, n: int) -> Floats:
    from scipy.stats import kstwo

    p_value: Floats = np.clip(kstwo.sf(distance, n), 0.0, 1.0)
    return p_value


def _bootstrap_p_value(fit: ProfileFit, distance: float, n: int, bootstraps: int, rng: np.random.Generator) -> float:
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
    distances = ks_distance(gaps, fit_profile(gaps, None))
    return float((1 + (distances >= distance).sum()) / (bootstraps + 1))


def _describe(
    fit: ProfileFit,
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
