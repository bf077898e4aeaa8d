"""P(a training converges | η) as a logistic curve in log η, with a posterior over its threshold and slope."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def expit(z: Array) -> Array:
    """1 / (1 + e⁻ᶻ); imported late, because scipy is slow to import and reading an estimate does not need it."""
    from scipy.special import expit as logistic

    return logistic(z)  # type: ignore[no-any-return]


REACH = 14.0  # the threshold is sought within this many e-folds of the start, a factor of a million either way
SPACING = 0.02  # of the thresholds on the grid, in e-folds
SLOPES = np.geomspace(0.01, 0.8, 18)  # e-folds between 50% and 73%
USUAL_SLOPE, SLOPE_FACTOR = 0.1, 1.5  # prior: log-normal, two thirds within this factor
DECAY = 2.0  # prior of the threshold: it halves with every factor 4 = e^(2 ln 2) away from the start
MISJUDGED = 0.01  # of verdicts, whatever the rate
NEGLIGIBLE = 1e-9
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(15)  # to average over a normal deviation


@dataclass(frozen=True)
class DoseResponse:
    """P(converges | η) = 1 / (1 + (η / threshold)^(1/slope)), given the runs so far.

    The prior is weak: the threshold is where the search starts, give or take factors of 4, and from 50% to 90% it is a
    factor 1.25 (in two cases of three 1.16 to 1.4). One verdict in a hundred may be wrong at any rate. Psychometrics
    measures a threshold of hearing this way.

    Where the trainings of interest are longer than those that were run, their log threshold deviates from this one by a
    normal variable with the standard deviation `spread`, which most methods take as an argument.

    >>> heard = DoseResponse(start=0.1, rates=(0.1, 0.4, 1.6, 0.8, 0.6), survived=(True, True, False, False, True))
    >>> round(heard.threshold(), 1)
    0.7
    """

    start: float
    rates: Sequence[float] = ()
    survived: Sequence[bool] = ()

    def threshold(self, quantile: float = 0.5) -> float:
        """The rate at which half of all trainings converge, at a quantile of its posterior."""
        return self.rate_for(0.5, quantile)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The threshold lies in here with this probability."""
        return self.threshold((1 - level) / 2), self.threshold((1 + level) / 2)

    def rate_for(self, share: float, quantile: float = 0.5, *, spread: float = 0.0) -> float:
        """The rate at which this share of trainings converges, at a quantile of its posterior."""
        positions, weights = self._posterior
        nodes, shares = (NODES, NODE_WEIGHTS / NODE_WEIGHTS.sum()) if spread else (np.zeros(1), np.ones(1))
        below = math.log(share / (1 - share)) * SLOPES  # how far below the threshold that rate lies, by slope
        ends = ((positions[:, None] - below)[..., None] + spread * nodes).ravel()
        order = np.argsort(ends)
        masses = (weights[..., None] * shares).ravel()[order]
        return self._rate(float(np.interp(quantile, np.cumsum(masses) - masses / 2, ends[order])))

    def survival(self, rates: Sequence[float], *, spread: float = 0.0) -> list[float]:
        """P(converges) at each rate, averaged over the posterior."""
        return [self._survival(math.log(rate / self.start), spread) for rate in rates]

    def _survival(self, position: float, spread: float) -> float:
        positions, weights = self._posterior
        ends = positions[:, None, None] + spread * NODES - position
        averaged = expit(ends / SLOPES[:, None]) @ (NODE_WEIGHTS / NODE_WEIGHTS.sum())
        return float((weights * averaged).sum())

    def most_informative_rate(self) -> float:
        """Where one more verdict tells most about the curve: the mutual information of the two, maximised."""
        positions, _ = self._posterior
        gain = _entropy(self._average(_verdict)) - self._average(lambda z: _entropy(_verdict(z)))
        return self._rate(positions[np.argmax(gain)])

    def _rate(self, position: float) -> float:
        return self.start * math.exp(position)

    @cached_property
    def _posterior(self) -> tuple[Array, Array]:
        """Log thresholds relative to the start, and the weight of each with each slope, where it is not negligible."""
        positions = np.arange(-REACH, REACH + SPACING / 2, SPACING)
        logs = -np.abs(positions)[:, None] / DECAY - 0.5 * (np.log(SLOPES / USUAL_SLOPE) / np.log(SLOPE_FACTOR)) ** 2
        for rate, survived in zip(self.rates, self.survived, strict=True):
            p = _verdict((positions[:, None] - math.log(rate / self.start)) / SLOPES)
            logs += np.log(p if survived else 1 - p)
        weights = np.exp(logs - logs.max())
        (likely,) = np.nonzero(weights.max(1) > NEGLIGIBLE)
        window = slice(likely[0], likely[-1] + 1)
        return positions[window], weights[window] / weights[window].sum()

    def _average(self, curve: Callable[[Array], Array]) -> Array:
        """A curve of (log threshold − log rate) / slope, averaged over the posterior, with a rate at every position."""
        positions, weights = self._posterior
        distances = SPACING * np.arange(1 - len(positions), len(positions))
        size = 3 * len(positions)
        spectrum = np.fft.rfft(curve(-distances[:, None] / SLOPES), size, axis=0) * np.fft.rfft(weights, size, axis=0)
        average: Array = np.fft.irfft(spectrum.sum(1), size)[len(positions) - 1 : 2 * len(positions) - 1]
        return average


def _verdict(z: Array) -> Array:
    verdict: Array = MISJUDGED + (1 - 2 * MISJUDGED) * expit(z)
    return verdict


def _entropy(p: Array) -> Array:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return -p * np.log(p) - (1 - p) * np.log(1 - p)
