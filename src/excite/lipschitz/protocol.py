"""An estimator of L is a frozen set of options, called with its evidence; a LipschitzEstimate is its answer.

To add one: a file with a frozen dataclass that derives from `Estimator`, and a line in `ESTIMATORS`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from excite import html
from excite.errors import InputError
from excite.quantities import check_positive
from excite.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Needs = Literal["trace", "short trainings", "nothing"]

CONVERGED, FAILED, CURVE = "#2a7f62", "#b5403a", "#6b6f76"  # colors of the plot


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
        """Whether to train at it: L is identified, stated, or a bound that Algorithm 1 gives when properly fitted."""
        return self.identified or self.method == "stated" or self._is_bound

    @property
    def _is_bound(self) -> bool:
        fitted = self.method == "epochs" and self.details.get("protocol") == "fitted"
        return fitted and self.details["fit"]["return_level"] is not None

    def learning_rate(self, multiple: float = 1.0) -> float:
        """`multiple`/L: 1 gives the PoE-motivated rate, 2 the largest convergent one."""
        check_positive("multiple", multiple)
        return multiple / self.constant

    def search_space(self) -> tuple[float, float]:
        """The rates to search with Optuna or Ray Tune: from a tenth of 1/L to 2/L, best on a logarithmic scale.

        >>> LipschitzEstimate(4.0, (3.0, 5.0), "curvature", True, "an example").search_space()
        (0.025, 0.5)
        """
        return self.learning_rate(0.1), self.learning_rate(2)

    @property
    def best_multiple(self) -> float:
        """The multiple of 1/L that did best on held-out data, of those that `find_learning_rate(validate=…)` tried."""
        scored = [run for run in self.details.get("validation", []) if run["score"] is not None]
        if not scored:
            raise InputError("No rate was validated: pass validate=… to find_learning_rate. L must be identified.")
        return float(max(scored, key=lambda run: run["score"])["multiple"])

    def overlaps(self, other: "LipschitzEstimate") -> bool:
        """Whether the two intervals overlap."""
        return self.interval[0] <= other.interval[1] and other.interval[0] <= self.interval[1]

    def _repr_html_(self) -> str:
        return html.paragraphs(str(self))

    def __str__(self) -> str:
        if self.convergence:
            return self._bound(self.convergence)
        low, high = self.interval
        rates = f"1/L = {self.learning_rate():.3g}, 2/L = {self.learning_rate(2):.3g}."
        if self.method == "stated":
            return f"L = {self.constant:.3g}, stated by {self.basis}. {rates}"
        bound = "a bound, because no endpoint is identified" if self._is_bound else "NOT identified"
        trust = "identified" if self.identified else bound
        p_value = "" if self.p_value is None else f", p = {self.p_value:.2g}"
        # As an earlier version stored it; today `edge` always gives a bound with its probabilities.
        half = " (2 over the rate that half of the short runs survive)" if self.method == "edge" else ""
        value = f"L = {self.constant:.3g} ({low:.3g} to {high:.3g}) by {self.method}{half}{p_value}"
        return f"{value}; {trust}: {self.basis}. {rates}"

    def _bound(self, convergence: tuple[float, float]) -> str:
        first, second = self.learning_rate(), self.learning_rate(2)
        if not self.identified:
            bound = f"L ≤ {self.constant:.3g}, {self.basis}. 1/L = {first:.3g}, 2/L = {second:.3g}."
            return f"L is not identified, so do not train at it: {bound}"
        return (
            f"Train at {first:.3g} (1/L) or up to {second:.3g} (2/L): {convergence[1]:.0%} of trainings converge "
            f"there. L ≤ {self.constant:.3g}, {self.basis}."
        )

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw 1/L, 2/L, the interval and the short runs over the learning rate, on `axes` or on new ones."""
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(6.4, 3.6), layout="constrained").subplots()
        low, high = self.interval
        if low > 0:
            axes.axvspan(2 / high, 2 / low, color=CURVE, alpha=0.15, lw=0, label="interval of 2/L")
        for multiple, style in ((1, "--"), (2, "-")):
            axes.axvline(self.learning_rate(multiple), color="black", ls=style, lw=1, label=f"{multiple}/L")
        if "curve" in self.details:
            axes.plot(*zip(*self.details["curve"], strict=True), color=CURVE, lw=1.5, label="P(training converges)")
            verdicts = "converged" if "converged" in self.details else "ended_well"  # the latter in earlier versions
            runs = list(zip(self.details["rates"], self.details[verdicts], strict=True))
            for converged, color, label in ((True, CONVERGED, "converged"), (False, FAILED, "did not converge")):
                rates = [rate for rate, verdict in runs if verdict is converged]
                axes.plot(rates, [float(converged)] * len(rates), "o", color=color, ms=5, alpha=0.8, label=label)
            axes.set(ylabel="P(training converges)", ylim=(-0.08, 1.08))
        axes.set(xscale="log", xlabel="learning rate", title=f"L = {self.constant:.3g} by {self.method}")
        axes.legend(fontsize="small", frameon=False)
        return axes

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"interval": list(self.interval)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "LipschitzEstimate":
        pairs = {key: tuple(value[key]) for key in ("interval", "convergence") if value.get(key)}
        return cls(**value | pairs)


@dataclass(frozen=True)
class ShortTrainings:
    """Short trainings of one experiment, and how long a whole one is.

    `losses_at(rate, draw, steps)` trains for `steps` steps, in which it goes through the whole schedule, and yields the
    loss of each. The same `draw` means the same initial weights and data order, whatever the rate.
    """

    losses_at: Callable[[float, int, int], Iterable[float]]
    whole: int  # steps of one whole training
    first_rate: float  # the usual rate, where a search begins
    optimizer: str = ""  # its description
    say: Callable[[str], None] | None = None  # receives a message when the search continues beyond its budget


@dataclass(frozen=True)
class Recording:
    """How much a run will record, or a trace holds."""

    moments: int  # usually ends of epochs
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
    """Base of all estimators; the dataclass fields of a subclass are its options."""

    title: ClassVar[str]  # for tables and legends
    about: ClassVar[str]  # a sentence that describes it
    needs: ClassVar[Needs]

    @abstractmethod
    def __call__(self, evidence: Evidence_contra) -> LipschitzEstimate:
        """L from the evidence that `needs` names."""

    def check(self, recording: Recording) -> None:
        """Raise InputError if this recording is not enough for an estimate."""

    def most_steps(self, whole: int) -> int:  # noqa: ARG002
        """Largest number of training steps it takes besides the baseline; `whole` is the length of a training."""
        return 0

    def usual_steps(self, whole: int) -> int:
        """Number of steps if its budget suffices."""
        return self.most_steps(whole)
