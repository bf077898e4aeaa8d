"""Is one model more robust than another? Pair their verdicts on the same examples."""

import dataclasses
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.evaluation.result import Evaluation
from excite.registry import named_options

Z95 = NormalDist().inv_cdf(0.975)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The second model against the first: who was right where the other was wrong."""

    on: str
    total: int
    only_first: int
    only_second: int
    interval: tuple[float, float]  # 95%, of the difference

    @property
    def difference(self) -> float:
        """Accuracy of the second model minus accuracy of the first."""
        return (self.only_second - self.only_first) / self.total

    @property
    def p_value(self) -> float:
        """McNemar's exact test, two-sided."""
        return mcnemar(self.only_first, self.only_second)

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return (
            f"{self.on}: {100 * self.difference:+.2f} points ({low:+.2f} to {high:+.2f}), "
            f"McNemar p = {self.p_value:.2g}; of {self.total} examples {self.only_second} are right only for the "
            f"second model, {self.only_first} only for the first"
        )


@named_options
def compare(first: Evaluation, second: Evaluation, on: str = "worst") -> Comparison:
    """Compare two evaluations of the same examples on `"clean"`, `"worst"` or an attack both have.

    The interval is Bonett and Price's (2012): Wald's for paired shares, after adding one example that only the first
    model gets right and one that only the second does. It keeps its width where few or no examples tell them apart.
    """
    if first.examples != second.examples:
        raise InputError("These evaluations used different examples; evaluate both models on the same ones.")
    one, two = np.asarray(first.outcomes(on)), np.asarray(second.outcomes(on))
    gains = two.astype(float) - one
    centre, half = gains.sum() / (len(gains) + 2), Z95 * variance_of_mean(gains) ** 0.5
    return Comparison(
        on=on,
        total=len(gains),
        only_first=int((gains < 0).sum()),
        only_second=int((gains > 0).sum()),
        interval=(max(-1.0, float(centre - half)), min(1.0, float(centre + half))),
    )


def variance_of_mean(gains: NDArray[np.float64]) -> float:
    """The variance of the mean of gains in [−1, 1], never zero: one example of +1 and one of −1 are added."""
    more = np.append(gains, [1.0, -1.0])
    return float(more.var() / len(more))


def mcnemar(only_first: int, only_second: int) -> float:
    """How likely a split at least this uneven is if each disagreement goes either way by the toss of a coin.

    >>> mcnemar(0, 5)
    0.0625
    """
    from scipy.stats import binomtest

    tosses = only_first + only_second
    return float(binomtest(only_first, tosses).pvalue) if tosses else 1.0
