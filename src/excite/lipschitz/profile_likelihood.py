"""The profile likelihood of reverse Weibulls over their endpoint, in units of the mean gap below the largest maximum.

A reverse Weibull has the endpoint c: F(x) = exp(−((c − x)/scale)^shape) for x ≤ c. For a given c the other two
parameters follow from one root, so the fit is a search over c alone. Let r be the gap between a maximum and the largest
one, in units of the mean gap, δ = c − largest, and u = δ log(1 + r/δ). Then ((c − x)/scale)^shape is exp(t(u − m)) with

    1/t = Σ u e^{tu} / Σ e^{tu} − mean(u),    m = log(mean e^{tu}) / t,    shape = t δ,    scale = δ e^{m/δ}.

As δ → ∞, u → r and the same equation gives the Gumbel distribution, so the limit is one more point of the search. As
δ → 0, the likelihood of shapes below 1 grows without bound. Shapes are therefore restricted to at least 1, where the
likelihood is bounded and the limit is an exponential distribution.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_GAPS = np.logspace(-6, 5, 34)  # the grid of δ, in mean gaps; 0 and ∞ are added at its ends
_GRID = np.concatenate([[0.0], _GAPS, [np.inf]])
_ZOOMS, _ZOOM_POINTS = 7, 11
_TIE = 1e-7  # log-likelihoods closer than this count as equal


class ProfileFit(NamedTuple):
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
    """Rate, location and log-likelihood of samples (B, M) at endpoints (B, G), with shapes of at least 1."""
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


def fit_profile(gaps: Floats, initial_shapes: Floats | None) -> ProfileFit:
    """The best endpoint of each sample: a grid over δ, then zooms into the cell around its best point."""
    n_samples = len(gaps)
    rate, location, likelihood = _profile(gaps, np.tile(_GRID, (n_samples, 1)))
    likelihood[:, -1] += _TIE  # an endpoint that is as likely as infinity counts as infinite
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
    return ProfileFit(
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
        neighbors = [i for i in (index - 1, index + 1) if 0 <= i < len(values) and values[i] > values[index]]
        if not neighbors:
            return index
        index = max(neighbors, key=lambda i: float(values[i]))


def _zoom(gaps: Floats, cells: NDArray[np.int_]) -> tuple[Floats, Floats, Floats, Floats]:
    everyone = np.arange(len(gaps))
    step = math.log(_GAPS[1] / _GAPS[0])
    center = np.log(_GAPS[cells])
    for _ in range(_ZOOMS):
        logs = center[:, None] + np.linspace(-step, step, _ZOOM_POINTS)
        rate, location, likelihood = _profile(gaps, np.exp(logs))
        best = likelihood.argmax(axis=1)
        center = logs[everyone, best]
        step *= 2 / (_ZOOM_POINTS - 1)
    return np.exp(center), rate[everyone, best], location[everyone, best], likelihood[everyone, best]


def profile_interval(gaps: Floats, fits: ProfileFit, level: float) -> tuple[Floats, Floats]:
    """All δ whose log-likelihood is within half a χ²₁ quantile of the best."""
    from scipy.special import chdtri

    cut = fits.best - float(chdtri(1, 1 - level)) / 2
    # The fitted point is inside, even if both neighboring grid points are outside.
    points = np.column_stack([np.broadcast_to(_GRID, fits.profile.shape), fits.gap])
    order = points.argsort(axis=1, kind="stable")
    points = np.take_along_axis(points, order, axis=1)
    likelihoods = np.column_stack([fits.profile, fits.log_likelihood])
    inside = np.take_along_axis(likelihoods, order, axis=1) >= cut[:, None]
    everyone, end = np.arange(len(gaps)), points.shape[1] - 1
    first, last = inside.argmax(axis=1), end - inside[:, ::-1].argmax(axis=1)
    low_in, high_in = points[everyone, first], points[everyone, last]
    low_out, high_out = points[everyone, np.maximum(first - 1, 0)], points[everyone, np.minimum(last + 1, end)]
    lower, upper = np.zeros(len(gaps)), np.full(len(gaps), np.inf)
    cuts_low, cuts_high = first > 0, last < end
    lower[cuts_low] = _crossing(gaps[cuts_low], cut[cuts_low], low_out[cuts_low], low_in[cuts_low])
    upper[cuts_high] = _crossing(gaps[cuts_high], cut[cuts_high], high_out[cuts_high], high_in[cuts_high])
    return lower, upper


def _crossing(gaps: Floats, cut: Floats, outside: Floats, inside: Floats) -> Floats:
    """Where the profile crosses `cut` between a δ below it and one above it, by bisection of log δ into quarters."""
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


def ks_distance(gaps: Floats, fits: ProfileFit) -> Floats:
    """Kolmogorov-Smirnov distance of samples (B, M) from their fits, F(x) = exp(−((c − x)/scale)^shape)."""
    u = _log_gaps(gaps, fits.gap[:, None])
    power = np.exp(np.minimum(fits.rate[:, None] * (u - fits.location[:, None]), 700.0))
    cdf = np.exp(-np.sort(np.where(fits.gap[:, None] == 0, gaps, power), axis=1)[:, ::-1])
    steps = np.arange(gaps.shape[1] + 1) / gaps.shape[1]
    distance: Floats = np.maximum(steps[1:] - cdf, cdf - steps[:-1]).max(axis=1)
    return distance
