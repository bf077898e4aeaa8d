"""Fit a reverse Weibull to block maxima; its endpoint bounds the slopes, if the data identify one."""

import math
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.profile_likelihood import ProfileFit, fit_profile, ks_distance, profile_interval

Floats = NDArray[np.float64]

SMALLEST_SAMPLE = 3
LEVEL = 0.95  # of the profile interval
RETURN_PERIOD = 1000  # maxima


@dataclass(frozen=True, kw_only=True)
class ReverseWeibullFit:
    """What M block maxima say about the largest possible value.

    `endpoint`, `scale` and `shape` are None if the likelihood has no finite maximum. `identified` means that the data
    prefer a finite endpoint to the Gumbel limit: the profile interval has a finite upper end. The interval has its
    nominal coverage for shapes of at least 2; below 2 the likelihood is not regular. `return_level` is the value that
    a Gumbel fit exceeds once in `return_period` maxima, a bound to use if no endpoint is identified.
    """

    n_maxima: int  # M in the paper
    largest: float
    interval: tuple[float, float]
    finding: str
    return_period: float = float(RETURN_PERIOD)
    identified: bool = False
    endpoint: float | None = None
    scale: float | None = None
    shape: float | None = None
    ks_p_value: float | None = None
    bootstrap_p_value: float | None = None
    return_level: float | None = None

    @property
    def bound(self) -> float:
        """The endpoint, or if it is not identified, the return level."""
        if self.identified and self.endpoint is not None:
            return self.endpoint
        return self.largest if self.return_level is None else self.return_level

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return asdict(self) | {"interval": [low, high if math.isfinite(high) else None]}


def fit_reverse_weibull(
    samples: Floats,
    *,
    initial_shapes: Floats | None = None,
    bootstraps: int = 0,
    seed: int = 0,
) -> list[ReverseWeibullFit]:
    """Fit each row of `samples`, M block maxima, by maximum likelihood.

    By default a fit is the global maximum of the likelihood. With an initial shape, it is the local maximum reached
    uphill from the endpoint at which that shape fits best, as in the paper's heat maps.

    `ks_p_value` is the paper's Kolmogorov-Smirnov p-value. It treats the fitted parameters as known, so it is too
    large. `bootstrap_p_value` simulates from the fit and refits, which is a valid test; None with `bootstraps=0`.
    """
    from scipy.stats import kstwo

    samples = np.asarray(samples, dtype=np.float64)
    if samples.ndim != 2 or samples.shape[1] < SMALLEST_SAMPLE:
        raise InputError(f"A reverse Weibull has three parameters; pass M = {SMALLEST_SAMPLE} or more block maxima.")
    if not np.isfinite(samples).all():
        raise InputError("The block maxima contain NaN or infinite values, as of a run that diverged.")
    n_maxima = samples.shape[1]
    # Dividing first keeps the gaps of huge samples finite and those of tiny ones exact.
    magnitude = np.abs(samples).max(axis=1)
    scaled = samples / np.where(magnitude > 0, magnitude, 1.0)[:, None]
    gaps = scaled.max(axis=1, keepdims=True) - scaled
    mean_gap = gaps.mean(axis=1)
    varies = mean_gap * magnitude > 0  # gaps that underflow count as zero
    standard = gaps[varies] / mean_gap[varies, None]
    profile = fit_profile(
        standard, None if initial_shapes is None else np.asarray(initial_shapes, dtype=np.float64)[varies]
    )
    distances = ks_distance(standard, profile)
    ks_p_values = np.clip(kstwo.sf(distances, n_maxima), 0.0, 1.0)
    bounds = np.stack(profile_interval(standard, profile, LEVEL), axis=1)
    fits = [
        ReverseWeibullFit(
            n_maxima=n_maxima,
            largest=float(largest),
            interval=(float(largest), math.inf),
            finding=f"All {n_maxima} maxima are {largest:.4g}; a constant sample says nothing about an endpoint. "
            "Draw smaller blocks (a smaller N) or record more slopes.",
        )
        for largest in samples.max(axis=1)
    ]
    for row, index in enumerate(np.flatnonzero(varies)):
        fit = ProfileFit(*(values[row] for values in profile))
        unit = float(mean_gap[index] * magnitude[index])
        rng = np.random.default_rng((seed, int(index)))
        p_value = _bootstrap_p_value(fit, distances[row], (bootstraps, n_maxima), rng) if bootstraps else None
        described = _in_units(fit, unit, samples[index], bounds[row])
        fits[index] = replace(described, ks_p_value=float(ks_p_values[row]), bootstrap_p_value=p_value)
    return fits


def _bootstrap_p_value(fit: ProfileFit, distance: float, size: tuple[int, int], rng: np.random.Generator) -> float:
    """Share of samples drawn from the fit that are at least as far from their own fit."""
    log_exponent = np.log(rng.standard_exponential(size))
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
    return float((1 + (distances >= distance).sum()) / (size[0] + 1))


def _in_units(fit: ProfileFit, unit: float, sample: Floats, bounds: Floats) -> ReverseWeibullFit:
    """The fit in the units of the sample: a gap of 1 below its largest value is `unit` there.

    `bounds` is the profile interval of the gap.
    """
    largest, gap = float(sample.max()), float(fit.gap)
    low, high = map(float, bounds)
    interval = largest + unit * low, largest + unit * high
    if math.isinf(gap):  # the Gumbel distribution
        endpoint = shape = scale = None
    elif gap == 0:  # the exponential distribution
        endpoint, shape, scale = largest, 1.0, unit
    else:
        endpoint, shape = largest + unit * gap, float(fit.rate) * gap
        scale = unit * (gap * math.exp(min(float(fit.location) / gap, 700.0)))
    return_gap = float(fit.gumbel_location) + math.log(-math.log1p(-1 / RETURN_PERIOD)) / float(fit.gumbel_rate)
    return_level = max(largest, largest - unit * return_gap)
    identified = False
    if not low <= gap <= high:
        finding = "; the likelihood is much higher elsewhere than at the maximum next to this initial shape"
    elif gap == 0:
        finding = "; they pile up there (shape at or below 1), so no endpoint is identified"
    elif math.isinf(high):
        finding = "; they do not distinguish a finite endpoint from the Gumbel limit"
    else:
        identified = True
        finding = f" and the endpoint {endpoint:.4g} ({interval[0]:.4g} to {interval[1]:.4g}), with shape {shape:.3g}"
    if not identified:
        finding += f". As a bound, one maximum in {RETURN_PERIOD} exceeds {return_level:.4g}"
    return ReverseWeibullFit(
        n_maxima=len(sample),
        largest=largest,
        endpoint=endpoint,
        scale=scale,
        shape=shape,
        interval=interval,
        identified=identified,
        return_level=return_level,
        finding=f"The largest of {len(sample)} maxima is {largest:.4g}{finding}.",
    )


@dataclass(frozen=True)
class StoppingPoint:
    """The reverse Weibull at which an optimizer stopped, and its Kolmogorov-Smirnov p-value: NaN and 0 if none."""

    initial_shape: float
    shape: float
    endpoint: float
    scale: float
    p_value: float
    converged: bool  # as the optimizer says; otherwise it reached its limit of iterations

    @property
    def finite(self) -> bool:
        return bool(np.isfinite([self.endpoint, self.scale]).all() and self.scale > 0)

    def to_json(self) -> dict[str, float | None]:
        return {name: value if np.isfinite(value) else None for name, value in asdict(self).items()}


def stopping_point(maxima: Floats, initial_shape: float) -> StoppingPoint:
    """Fit as the paper's text says: maximum likelihood by a numeric optimizer, Nelder-Mead, from an initial shape.

    If the likelihood increases all the way to the Gumbel limit, endpoint and scale grow together without bound, and the
    point where the optimizer stops depends on where it started. It is then not an estimate of either.
    """
    from scipy.optimize import fmin
    from scipy.stats import FitError, kstest, weibull_min

    warnflags = []

    def optimizer(*given: Any, **options: Any) -> Any:
        parameters, _, _, _, warnflag = fmin(*given, **options, full_output=True)
        warnflags.append(warnflag)
        return parameters

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            shape, location, scale = map(float, weibull_min.fit(-maxima, initial_shape, optimizer=optimizer))
        except FitError:  # it stopped at parameters that are not valid
            return StoppingPoint(initial_shape, *(math.nan,) * 3, p_value=0.0, converged=False)
        p_value = float(kstest(-maxima, "weibull_min", args=(shape, location, scale)).pvalue)
    converged = not any(warnflags)
    return StoppingPoint(initial_shape, shape, -location, scale, p_value if p_value > 0 else 0.0, converged)
