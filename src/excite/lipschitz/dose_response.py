"""The rate that half of all trainings survive, as a posterior over threshold and slope of a logistic curve in log η."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def expit(z: Array) -> Array:
    """1 / (1 + e⁻ᶻ); scipy is slow to import, and who reads an estimate need not wait for it."""
    from scipy.special import expit as logistic

    return logistic(z)  # type: ignore[no-any-return]


REACH = 14.0  # the threshold is sought within this many e-folds of the start, a factor of a million either way
SPACING = 0.02  # of the thresholds on the grid, in e-folds
SLOPES = np.geomspace(0.01, 0.8, 18)  # e-folds between 50% and 73% survival
USUAL_SLOPE, SLOPE_FACTOR = 0.1, 1.5  # prior: log-normal, two thirds within this factor
DECAY = 2.0  # prior of the threshold: it halves with every factor 4 = e^(2 ln 2) away from the start
MISJUDGED = 0.01  # of verdicts, whatever the rate
NEGLIGIBLE = 1e-9
BISECTIONS = 40  # of 56 e-folds: to the last digits


@dataclass(frozen=True)
class DoseResponse:
    """P(a training ends well | η) = 1 / (1 + (η / threshold)^(1/slope)), given what became of trainings so far.

    The prior is weak: the threshold is where the search starts, give or take factors of 4, and from half to nine tenths
    of the trainings it is a factor 1.25 (in two cases of three 1.16 to 1.4). One in a hundred verdicts may be wrong
    whatever the rate. Psychometrics measures the threshold of an ear this way.

    >>> heard = DoseResponse(start=0.1, rates=(0.1, 0.4, 1.6, 0.8, 0.6), survived=(True, True, False, False, True))
    >>> round(heard.threshold(), 2)
    0.69
    """

    start: float
    rates: Sequence[float] = ()
    survived: Sequence[bool] = ()

    def threshold(self, quantile: float = 0.5) -> float:
        """The rate that half of all trainings survive, at a quantile of its posterior."""
        positions, weights = self._posterior
        cumulated = np.cumsum(weights.sum(1))
        return self._rate(np.interp(quantile, cumulated - weights.sum(1) / 2, positions))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The threshold lies in here with this probability."""
        return self.threshold((1 - level) / 2), self.threshold((1 + level) / 2)

    def careful(self, share: float = 0.95) -> float:
        """The rate that this share of trainings survives, doubts about threshold and slope included."""
        low, high = -2 * REACH, 2 * REACH  # beyond every threshold, by many slopes
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._survival(middle) > share else (low, middle)
        return self._rate(low)

    def survival(self, rates: Sequence[float]) -> list[float]:
        """P(a training ends well) at each rate, averaged over the posterior."""
        return [self._survival(math.log(rate / self.start)) for rate in rates]

    def _survival(self, position: float) -> float:
        positions, weights = self._posterior
        return float((weights * expit((positions[:, None] - position) / SLOPES)).sum())

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
