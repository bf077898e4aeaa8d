"""An estimator of L is a frozen set of options, called with its evidence; a LipschitzEstimate is its answer.

To add one: a file with a frozen dataclass that derives from `Estimator`, and a line in `ESTIMATORS`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from excite.errors import InputError
from excite.quantities import check_positive
from excite.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Needs = Literal["trace", "short trainings", "nothing"]


@dataclass(frozen=True)
class LipschitzEstimate:
    """L, the Lipschitz constant of the loss gradient, as one method estimates it.

    `interval` brackets L as the method states in `basis`. `identified` says whether the data determine L. `convergence`
    is the probability that a training converges at 1/L and at 2/L, where the method knows it; L is then an upper bound.
    `details` holds what else the method measured, as plain numbers, strings and lists.

    >>> estimate = LipschitzEstimate(4.0, (3.0, 5.0), "curvature", True, "an example")
    >>> print(estimate)
    L = 4 (3 to 5) by curvature; identified: an example. 1/L = 0.25, 2/L = 0.5.
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
    convergence: tuple[float, float] | None = None  # at 1/L and at 2/L

    def __post_init__(self) -> None:
        if not (math.isfinite(self.constant) and self.constant > 0):
            raise InputError(f"L must be positive and finite, not {self.constant}; the run it came from did not learn.")

    @property
    def reliable(self) -> bool:
        """Whether to train at it: the data determine L, or somebody stated it."""
        return self.identified or self.method == "stated"

    def learning_rate(self, multiple: float = 1.0) -> float:
        """`multiple`/L: 1 gives the PoE-motivated rate, 2 the largest convergent one."""
        check_positive("multiple", multiple)
        return multiple / self.constant

    def overlaps(self, other: "LipschitzEstimate") -> bool:
        """Whether there is an L that both intervals hold."""
        return self.interval[0] <= other.interval[1] and other.interval[0] <= self.interval[1]

    def __str__(self) -> str:
        if self.convergence:
            return self._bound(self.convergence)
        low, high = self.interval
        rates = f"1/L = {self.learning_rate():.3g}, 2/L = {self.learning_rate(2):.3g}."
        if self.method == "stated":
            return f"L = {self.constant:.3g}, stated by {self.basis}. {rates}"
        trust = "identified" if self.identified else "NOT identified"
        p_value = "" if self.p_value is None else f", p = {self.p_value:.2g}"
        # As an earlier version stored it; today `edge` always gives a bound with its probabilities.
        half = " (2 over the rate that half of the short runs survive)" if self.method == "edge" else ""
        value = f"L = {self.constant:.3g} ({low:.3g} to {high:.3g}) by {self.method}{half}{p_value}"
        return f"{value}; {trust}: {self.basis}. {rates}"

    def _bound(self, convergence: tuple[float, float]) -> str:
        first, second = self.learning_rate(), self.learning_rate(2)
        if not self.identified:
            return (
                f"L is not identified, so do not train at it: L ≤ {self.constant:.3g}, {self.basis}. "
                f"1/L = {first:.3g}, 2/L = {second:.3g}."
            )
        return (
            f"Train at {first:.3g} (1/L) or up to {second:.3g} (2/L): {convergence[1]:.0%} of trainings converge "
            f"there. L ≤ {self.constant:.3g}, {self.basis}."
        )

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """1/L, 2/L and the runs behind them over the learning rate; needs a display only if you show it."""
        from excite.lipschitz.plotting import plot_estimate

        return plot_estimate(self, axes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"interval": list(self.interval)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "LipschitzEstimate":
        convergence = value.get("convergence")
        pairs = {"interval": tuple(value["interval"]), "convergence": tuple(convergence) if convergence else None}
        return cls(**value | pairs)


@dataclass(frozen=True)
class ShortTrainings:
    """Short trainings of one experiment, and how long a whole one is.

    `losses_at(rate, draw, steps)` trains for `steps` steps, in which it goes through the whole schedule, and yields the
    loss of each. The same `draw` means the same initial weights and data order, whatever the rate.
    """

    losses_at: Callable[[float, int, int], Iterable[float]]
    whole: int  # steps of one whole training
    first_rate: float  # the customary one, where a search begins
    optimizer: str = ""  # that they use, in words
    say: Callable[[str], None] | None = None  # told when the search continues beyond its budget


@dataclass(frozen=True)
class Recording:
    """What a run records, known before it trains, or what a trace holds: how much there is to estimate from."""

    moments: int  # ends of epochs
    input_gradients: bool = False
    slopes: int = 0
    curvatures: int = 0
    says: str = "The run will record"

    @classmethod
    def of(cls, trace: Trace) -> "Recording":
        usable = np.isfinite(trace.curvatures) & (trace.curvatures > 0)
        with_inputs = trace.squared_input_gradient_distances.size > 0
        return cls(len(trace), with_inputs, len(trace.slopes), int(usable.sum()), "The trace holds")


Evidence_contra = TypeVar("Evidence_contra", bound=Trace | ShortTrainings | None, contravariant=True)


class Estimator(ABC, Generic[Evidence_contra]):
    """Its dataclass fields are its options. What others need to know about it is here, so that nobody asks its name."""

    title: ClassVar[str]  # in tables and legends
    about: ClassVar[str]  # one sentence
    needs: ClassVar[Needs]

    @abstractmethod
    def __call__(self, evidence: Evidence_contra) -> LipschitzEstimate:
        """L from the evidence that `needs` names."""

    def check(self, recording: Recording) -> None:
        """Raise an InputError with its cure where a run that records this cannot be estimated from."""

    def most_steps(self, whole: int) -> int:  # noqa: ARG002
        """How many training steps it takes at most beyond the baseline's, where a whole training takes `whole`."""
        return 0

    def usual_steps(self, whole: int) -> int:
        """How many it takes if they are enough."""
        return self.most_steps(whole)
