"""Is one model more robust than another? Pair their verdicts on the same examples."""

import dataclasses
from fractions import Fraction

import numpy as np

from excite.errors import InputError
from excite.evaluation.result import Evaluation

RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The second model against the first: who was right where the other was wrong."""

    on: str
    total: int
    only_first: int
    only_second: int
    interval: tuple[float, float]  # 95%, of the difference, from a paired bootstrap
    p_value: float  # McNemar's exact test, two-sided

    @property
    def difference(self) -> float:
        """Accuracy of the second model minus accuracy of the first."""
        return (self.only_second - self.only_first) / self.total

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return (
            f"{self.on}: {100 * self.difference:+.2f} points ({low:+.2f} to {high:+.2f}), "
            f"McNemar p = {self.p_value:.2g}; of {self.total} examples {self.only_second} are right only for the "
            f"second model, {self.only_first} only for the first"
        )


def compare(first: Evaluation, second: Evaluation, on: str = "worst", *, seed: int = 0) -> Comparison:
    """Compare two evaluations of the same examples on `"clean"`, `"worst"` or an attack both have."""
    if first.examples != second.examples:
        raise InputError("These evaluations used different examples; evaluate both models on the same ones.")
    one, two = first.outcomes(on), second.outcomes(on)
    only_first, only_second = int((one & ~two).sum()), int((two & ~one).sum())
    return Comparison(
        on=on,
        total=len(one),
        only_first=only_first,
        only_second=only_second,
        interval=paired_bootstrap(only_first, only_second, len(one), rng=np.random.default_rng(seed)),
        p_value=mcnemar(only_first, only_second),
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """How likely a split at least this uneven is if each disagreement goes either way by the toss of a coin.

    >>> mcnemar(0, 5)
    0.0625
    """
    tosses = only_first + only_second
    ways = term = 1
    for heads in range(1, min(only_first, only_second) + 1):
        term = term * (tosses - heads + 1) // heads
        ways += term
    return float(min(Fraction(1), Fraction(2 * ways, 2**tosses)))


def paired_bootstrap(only_first: int, only_second: int, total: int, *, rng: np.random.Generator) -> tuple[float, float]:
    """The middle 95% of the difference over resampled examples; drawing counts is drawing examples, only faster."""
    shares = np.array([only_first, only_second, total - only_first - only_second]) / total
    draws = rng.multinomial(total, shares, size=RESAMPLES)
    low, high = np.quantile((draws[:, 1] - draws[:, 0]) / total, [0.025, 0.975])
    return float(low), float(high)
