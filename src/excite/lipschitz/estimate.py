"""An answer to "how large is L?": the constant, how sure we are of it, and the learning rates it gives."""

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from excite.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class LipschitzEstimate:
    """L, the Lipschitz constant of the loss gradient, as one method saw it.

    `interval` brackets L as the method states in `basis`; `identified` says whether the data pin L down at all.
    `details` holds what else the method measured, as plain numbers, strings and lists.

    >>> estimate = LipschitzEstimate(4.0, (3.0, 5.0), "stated", True, "an example")
    >>> print(estimate)
    L = 4 (3 to 5) by stated; identified: an example. 1/L = 0.25, 2/L = 0.5.
    >>> LipschitzEstimate.from_json(estimate.to_json()) == estimate
    True
    """

    constant: float
    interval: tuple[float, float]
    method: str
    identified: bool
    basis: str
    p_value: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.constant) and self.constant > 0):
            raise InputError(f"L must be positive and finite, not {self.constant}; the run it came from did not learn.")

    def learning_rate(self, multiple: float = 1.0) -> float:
        """`multiple`/L: 1 is the PoE-motivated rate (below it the theorem holds), 2 the largest convergent one."""
        return multiple / self.constant

    def __str__(self) -> str:
        low, high = self.interval
        trust = "identified" if self.identified else "NOT identified"
        p_value = "" if self.p_value is None else f", p = {self.p_value:.2g}"
        return (
            f"L = {self.constant:.3g} ({low:.3g} to {high:.3g}) by {self.method}{p_value}; {trust}: {self.basis}. "
            f"1/L = {self.learning_rate():.3g}, 2/L = {self.learning_rate(2):.3g}."
        )

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """1/L, 2/L and the runs behind them over the learning rate; needs a display only if you show it."""
        from excite.lipschitz.plotting import plot_estimate

        return plot_estimate(self, axes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"interval": list(self.interval)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "LipschitzEstimate":
        return cls(**value | {"interval": tuple(value["interval"])})
