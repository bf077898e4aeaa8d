"""P(a training converges | η) as a logistic curve in log η, with a posterior over threshold, slope and drift."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


REACH = 14.0  # the threshold is searched within this many e-folds of the start, a factor of a million either way
SPACING = 0.03  # distance of neighboring thresholds on the grid, in e-folds
SLOPES = np.geomspace(0.02, 0.6, 10)  # e-folds between the rates with 50% and 73%
USUAL_SLOPE, SLOPE_FACTOR = 0.1, 1.5  # prior: log-normal, two thirds within this factor
UNKNOWN = 2.0  # e-folds: prior of the threshold, which halves with every factor 4 = e^(2 ln 2) away from the start
DRIFT = 0.2  # standard deviation of d log threshold / d log length
DRIFTS = np.linspace(-0.64, 0.64, 17)
MISJUDGED = 0.01  # share of wrong verdicts, at any rate
NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class DoseResponse:
    """P(converges | η) = 1 / (1 + (η / threshold)^(1/slope)), given the runs so far.

    The prior is weak: the threshold is where the search starts, give or take factors of 4, and from 50% to 90% it is a
    factor 1.25 (in two cases of three 1.16 to 1.4). One verdict in a hundred may be wrong at any rate. Psychometrics
    measures a threshold of hearing this way.

    In trainings k times as long as the runs, the threshold is k^drift times as large; the drift is 0 with a standard
    deviation of 0.2.

    >>> heard = DoseResponse(start=0.1, rates=(0.1, 0.4, 1.6, 0.8, 0.6), survived=(True, True, False, False, True))
    >>> round(heard.threshold(), 1)
    0.7
    """

    start: float
    rates: Sequence[float] = ()
    survived: Sequence[bool] = ()
    reach: float = UNKNOWN  # e-folds around the start in which the prior expects the threshold

    def threshold(self, quantile: float = 0.5) -> float:
        """The rate at which half of all runs of this length converge, at a quantile of its posterior."""
        return self.rate_for(0.5, quantile)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The interval that contains the threshold with probability `level`."""
        return self.threshold((1 - level) / 2), self.threshold((1 + level) / 2)

    def rate_for(self, share: float, quantile: float = 0.5, *, longer: float = 1.0, rising: bool = False) -> float:
        """The rate at which this share of trainings converges, at a quantile of its posterior.

        The trainings are `longer` times as long as the runs. Their threshold may be lower, and with `rising` higher.
        """
        positions, weights = self._drifting(longer, rising=rising)
        ends = positions - math.log(share / (1 - share)) * SLOPES[:, None]
        order = np.argsort(ends, axis=None)
        masses = weights.ravel()[order]
        return self._rate(float(np.interp(quantile, np.cumsum(masses) - masses / 2, ends.ravel()[order])))

    def survival(self, rates: Sequence[float], *, longer: float = 1.0) -> list[float]:
        """P(converges) at each rate, averaged over the posterior; trainings are `longer` times as long as the runs."""
        from scipy.special import expit  # slow to import

        ends, weights = self._drifting(longer)
        logs = [math.log(rate / self.start) for rate in rates]
        return [float((weights * expit((ends - log) / SLOPES[:, None])).sum()) for log in logs]

    def most_informative_rate(self) -> float:
        """Where one more verdict tells most about the curve: the mutual information of the two, maximized."""
        positions, _ = self._posterior
        gain = _entropy(self._average(_verdict)) - self._average(lambda z: _entropy(_verdict(z)))
        return self._rate(positions[np.argmax(gain)])

    def _rate(self, position: float) -> float:
        return self.start * math.exp(position)

    @cached_property
    def _posterior(self) -> tuple[Array, Array]:
        """Log thresholds over the start, and their weights with each slope, where not negligible."""
        positions = np.arange(-REACH, REACH + SPACING / 2, SPACING)
        logs = -np.abs(positions)[:, None] / self.reach
        logs = logs - 0.5 * (np.log(SLOPES / USUAL_SLOPE) / np.log(SLOPE_FACTOR)) ** 2
        for rate, survived in zip(self.rates, self.survived, strict=True):
            p = _verdict((positions[:, None] - math.log(rate / self.start)) / SLOPES)
            logs = logs + np.log(p if survived else 1 - p)
        (likely,) = np.nonzero(logs.max(1) > logs.max() + math.log(NEGLIGIBLE))
        window = slice(likely[0], likely[-1] + 1)
        weights = np.exp(logs[window] - logs.max())
        return positions[window], weights / weights.sum()

    def _drifting(self, longer: float, *, rising: bool = False) -> tuple[Array, Array]:
        """Log thresholds of trainings `longer` times as long, and their weights, by threshold, slope and drift."""
        positions, weights = self._posterior
        offsets = (DRIFTS if rising else np.minimum(DRIFTS, 0.0)) * math.log(longer)
        likely = np.exp(-0.5 * (DRIFTS / DRIFT) ** 2)
        return positions[:, None, None] + offsets, weights[:, :, None] * likely / likely.sum()

    def _average(self, curve: Callable[[Array], Array]) -> Array:
        """A curve of (log threshold − log rate) / slope, averaged over the posterior, with a rate at every position."""
        positions, weights = self._posterior
        distances = SPACING * np.arange(1 - len(positions), len(positions))
        size = 3 * len(positions)
        spectrum = np.fft.rfft(curve(-distances[:, None] / SLOPES), size, axis=0)
        spectrum = spectrum * np.fft.rfft(weights, size, axis=0)
        average: Array = np.fft.irfft(spectrum.sum(1), size)[len(positions) - 1 : 2 * len(positions) - 1]
        return average


def _verdict(z: Array) -> Array:
    from scipy.special import expit  # slow to import

    verdict: Array = MISJUDGED + (1 - 2 * MISJUDGED) * expit(z)
    return verdict


def _entropy(p: Array) -> Array:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return -p * np.log(p) - (1 - p) * np.log(1 - p)
