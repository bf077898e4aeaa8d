"""Assumption 2 along a run: does each step make an acute angle with the rest of the way? And the batch size for it.

The steps go from epoch to epoch, and θ* is the last moment: (θᵏ − θᵏ⁺¹)ᵀ(θᵏ⁺¹ − θ*) ≥ 0. The last step, which ends at
θ*, is left out because both sides are 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.quantities import check_kind
from excite.trace import Trace

Floats = NDArray[np.float64]

FEWEST_MOMENTS = 3  # two steps, the second of which ends at θ*
STANDARD_ERRORS = 2.0  # of a sketched cosine; closer to 0 its sign is unknown


@dataclass(frozen=True, eq=False)
class Acuteness:
    """The inner product of Assumption 2 and the cosine of its angle, for each step between recorded moments.

    In a sketched trace (models with more than 2 million parameters), cosines are known up to `margin`.
    """

    products: Floats
    cosines: Floats
    margin: float = 0.0  # two standard errors of the sketch

    @property
    def holds(self) -> NDArray[np.bool_]:
        return self.products >= 0

    @property
    def fraction(self) -> float:
        """Share of steps at which the assumption holds."""
        return float(self.holds.mean())

    @property
    def undecided(self) -> NDArray[np.bool_]:
        """Steps whose cosine is too close to 0 for the sketch to tell its sign; none with exact vectors."""
        return np.abs(self.cosines) < self.margin

    def __str__(self) -> str:
        text = (
            f"Assumption 2 holds at {int(self.holds.sum())} of {len(self.products)} steps between recorded moments; "
            f"the smallest cosine is {self.cosines.min():.3g}."
        )
        if self.undecided.any():
            text += (
                f" At {int(self.undecided.sum())} of them the sign of the cosine is unknown, because it is within "
                f'{self.margin:.2g} of 0, two standard errors of the sketch. Recorder(…, storage="exact") avoids this.'
            )
        return text


def acuteness(trace: Trace) -> Acuteness:
    """Check Assumption 2 at each recorded step: (θᵏ − θᵏ⁺¹)ᵀ(θᵏ⁺¹ − θ*) ≥ 0, where θ* is the last moment.

    Args:
        trace: a trace with at least three moments (`recorder.record()` at the end of each epoch).

    Returns:
        Inner products and cosines per step. `.fraction` is the share of steps at which the assumption holds;
        `.undecided` marks the steps at which a sketched trace cannot tell.

    >>> positions = np.array([0.0, 1.0, 1.5, 1.75])  # θ₀ and three moments on a line that converges to 2
    >>> distances = (positions[:, None] - positions) ** 2
    >>> acuteness(Trace(distances, distances, steps=np.array([1, 2, 3]))).fraction
    1.0
    """
    check_length(trace)
    steps, products, rests = step_products(trace)
    lengths = np.sqrt(steps * rests)
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return Acuteness(products, cosines, STANDARD_ERRORS * trace.cosine_error)


def check_length(trace: Trace) -> None:
    check_kind("trace", trace, "squared_gradient_distances", "a Trace, such as recorder.trace")
    if len(trace) < FEWEST_MOMENTS:
        raise InputError(
            f"The trace has too few moments ({len(trace)}); at least {FEWEST_MOMENTS} are needed. "
            "Train for more epochs, or call recorder.record() more often."
        )


def step_products(trace: Trace) -> tuple[Floats, Floats, Floats]:
    """uᵀu, uᵀq and qᵀq of every recorded step but the last, with u = θᵏ − θᵏ⁺¹ and q = θᵏ⁺¹ − θ*."""
    squared = trace.squared_parameter_distances[1:, 1:]
    if not np.isfinite(squared).all():
        raise InputError("The recorded parameters contain non-finite values; use a run that did not diverge.")
    steps = np.diagonal(squared, 1)[:-1]
    to_goal = squared[:-1, -1]
    before, rests = to_goal[:-1], to_goal[1:]
    return steps.copy(), (before - steps - rests) / 2, rests.copy()


def choose_batch_size(fractions: Mapping[int, float], accuracies: Mapping[int, float], threshold: float) -> int:
    """The paper's heuristic: the largest batch size that is accurate enough, up to the smallest that is always acute.

    The search starts at the smallest batch size at which Assumption 2 holds at all steps, or, if there is none, at the
    one at which it holds most often. It goes down until the accuracy reaches the threshold.

    Args:
        fractions: for each batch size, the share of steps at which Assumption 2 holds (`acuteness(trace).fraction`).
        accuracies: for each batch size, the clean accuracy.
        threshold: the accuracy to reach; the paper uses 0.8 on CIFAR-10 and 0.6 on CIFAR-100.

    Returns:
        The batch size.

    >>> choose_batch_size({64: 0.7, 256: 1.0, 1000: 1.0}, {64: 0.85, 256: 0.75, 1000: 0.5}, threshold=0.8)
    64
    """
    if not fractions or set(fractions) != set(accuracies):
        raise InputError("Pass fractions and accuracies for the same batch sizes, at least one.")
    shares = {"threshold": [threshold], "accuracies": accuracies.values(), "fractions": fractions.values()}
    for name, values in shares.items():
        if wrong := [value for value in values if not 0 <= value <= 1]:
            raise InputError(f"{name} must be between 0 and 1, for example 0.8; got {wrong[0]:g}.")
    start = min(size for size, fraction in fractions.items() if fraction >= max(fractions.values()))
    candidates = {size: accuracies[size] for size in fractions if size <= start}
    accurate = [size for size, accuracy in candidates.items() if accuracy >= threshold]
    if not accurate:
        raise InputError(
            f"No batch size up to {start} reaches an accuracy of {threshold:g}; the best is "
            f"{max(candidates.values()):.4g}. Try smaller batches, train longer, or lower the threshold."
        )
    return max(accurate)
