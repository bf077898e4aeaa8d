"""An estimator of L is a frozen set of options that is called with its evidence: a trace, short trainings, or nothing.

To add one: a file with a frozen dataclass that derives from `Estimator`, and a line in `ESTIMATORS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np

from excite.lipschitz.estimate import LipschitzEstimate
from excite.trace import Trace

Needs = Literal["trace", "short trainings", "nothing"]


@dataclass(frozen=True)
class ShortTrainings:
    """Short trainings of one experiment, and how long a whole one is.

    `losses_at(rate, draw)` trains at a constant rate and yields the loss of each step, for as long as it is asked; the
    same `draw` means the same initial weights and data order, whatever the rate.
    """

    losses_at: Callable[[float, int], Iterable[float]]
    whole: int  # steps of one whole training
    first_rate: float  # the customary one, where a search begins
    optimizer: str = ""  # that they use, in words


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
