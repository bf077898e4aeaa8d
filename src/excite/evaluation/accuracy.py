"""How many of how many were right, and how sure that makes us of the rate."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """`correct` out of `total`, with Wilson's 95% interval.

    >>> print(Accuracy(8, 10))
    80.00% (49.02 to 94.33)
    """

    correct: int
    total: int
    known_interval: tuple[float, float] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def value(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The one a file has stated, or scipy's, which takes a second to import."""
        return self.known_interval or wilson(self.correct, self.total)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2%} ({100 * low:.2f} to {100 * high:.2f})"


def wilson(correct: int, total: int) -> tuple[float, float]:
    """The rates p for which the observed count lies within 1.96 standard deviations of np (Wilson, 1927)."""
    from scipy.stats import binomtest

    interval = binomtest(correct, total).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)
