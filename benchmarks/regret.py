"""Regret: how many points of accuracy a training loses against the best rate of a fine grid with the same seed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

GOOD_ENOUGH = 0.75  # a training below this share of the best rate's clean accuracy has failed


@dataclass(frozen=True)
class Training:
    """The result of one training; accuracies in percent, 0 if the weights were not finite."""

    network: str
    seed: int
    method: str
    rate: float | None  # None if the method has no rate
    clean: float
    robust: float
    search_steps: int  # spent on finding the rate
    steps: int  # of the training itself


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its 95% interval by Student's t; infinite for a single seed."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """
        >>> print(Mean.of([1.0, 2.0, 3.0]))
        2.0 (-0.5 to 4.5)
        """
        mean, count = float(np.mean(values)), len(values)
        half = math.inf if count < 2 else stdtrit(count - 1, 0.975) * float(np.std(values, ddof=1)) / math.sqrt(count)
        return cls(mean, mean - half, mean + half)

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.low:.1f} to {self.high:.1f})"


def best_rate(grid: Iterable[Training], measure: str) -> float:
    """The rate of the grid with the best mean over the seeds; the smallest one if several are equal."""
    reached: dict[float, list[float]] = {}
    for training in grid:
        reached.setdefault(training.rate or 0.0, []).append(getattr(training, measure))
    return min(reached, key=lambda rate: (-float(np.mean(reached[rate])), rate))


def regrets(trainings: Sequence[Training], grid: Sequence[Training], measure: str) -> dict[int, float]:
    """For each seed, the accuracy at the best rate minus that of the training, on one network.

    The best rate is the same for all seeds, so that a lucky training does not count as a better rate. The regret of a
    lucky training is negative.
    """
    best = best_rate(grid, measure)
    reference = {training.seed: getattr(training, measure) for training in grid if training.rate == best}
    return {each.seed: reference[each.seed] - getattr(each, measure) for each in trainings if each.seed in reference}


def failed(training: Training, grid: Sequence[Training]) -> bool:
    """Whether its clean accuracy is below 3/4 of the mean clean accuracy at the best rate."""
    best = best_rate(grid, "clean")
    return training.clean < GOOD_ENOUGH * float(np.mean([each.clean for each in grid if each.rate == best]))


def spread(rates: Mapping[str, Sequence[float]]) -> float:
    """The largest ratio between rates that a method picked for different seeds of the same network."""
    return max(max(picked) / min(picked) for picked in rates.values())
