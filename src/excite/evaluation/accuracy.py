"""How many of how many were right, and how sure that makes us of the rate."""

import dataclasses
import math

Z95 = 1.959963984540054  # the normal quantile at 0.975


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """`correct` out of `total`, with Wilson's 95% interval.

    >>> print(Accuracy(8, 10))
    80.00% (49.02 to 94.33)
    """

    correct: int
    total: int

    @property
    def value(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson (1927): the rates p for which the observed count lies within 1.96 standard deviations of np."""
        n, p = self.total, self.value
        centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
        low = 0.0 if self.correct == 0 else centre - half
        high = 1.0 if self.correct == n else centre + half
        return low, high

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2%} ({100 * low:.2f} to {100 * high:.2f})"
