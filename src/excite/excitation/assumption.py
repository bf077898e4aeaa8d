"""Assumption 2 along a run: does each step make an acute angle with what is left of the way; and the batch size for it.

From epoch to epoch, with θ* the last moment: (θᵏ − θᵏ⁺¹)ᵀ(θᵏ⁺¹ − θ*) ≥ 0. The pair that ends at θ* says 0 ≥ 0 and is
left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.quantities import check_kind
from excite.registry import named_options
from excite.trace import Trace

Floats = NDArray[np.float64]

STANDARD_ERRORS = 2.0  # of a sketched cosine: nearer to 0 its sign is not known


@dataclass(frozen=True, eq=False)
class Acuteness:
    """Per step between moments: the inner product of Assumption 2 and the cosine of its angle.

    Of a sketched trace (models of more than 2 million parameters) the cosines are known within `margin` only.
    """

    products: Floats
    cosines: Floats
    margin: float = 0.0  # two standard errors of the sketch

    @property
    def holds(self) -> NDArray[np.bool_]:
        return self.products >= 0

    @property
    def fraction(self) -> float:
        """Share of the steps at which the assumption holds."""
        return float(self.holds.mean())

    @property
    def undecided(self) -> NDArray[np.bool_]:
        """Where the cosine is so near to 0 that the sketch does not tell its sign; never with exact vectors."""
        return np.abs(self.cosines) < self.margin

    def __str__(self) -> str:
        found = (
            f"Assumption 2 holds at {int(self.holds.sum())} of {len(self.products)} steps between recorded moments; "
            f"the smallest cosine is {self.cosines.min():.3g}."
        )
        if self.undecided.any():
            found += (
                f" At {int(self.undecided.sum())} of them the cosine is within {self.margin:.2g} of 0, two standard "
                'errors of the sketch, and may have either sign: Recorder(…, storage="exact") tells.'
            )
        return found


@named_options
def acuteness(trace: Trace) -> Acuteness:
    """Assumption 2 at each recorded step: (θᵏ − θᵏ⁺¹)ᵀ(θᵏ⁺¹ − θ*) ≥ 0, θ* being the last moment.

    Args:
        trace: of a training with three moments or more (`recorder.record()` at the end of each epoch).

    Returns:
        Inner products and cosines per step; `.fraction` is the share of steps at which it holds, `.undecided` where a
        sketched trace does not tell.

    >>> positions = np.array([0.0, 1.0, 1.5, 1.75])  # θ₀ and three moments on a line, each half as far from 2
    >>> distances = (positions[:, None] - positions) ** 2
    >>> acuteness(Trace(distances, distances, steps=np.array([1, 2, 3]))).fraction
    1.0
    """
    check_kind("trace", trace, "squared_gradient_distances", "a Trace, such as recorder.trace")
    if len(trace) < 3:
        raise InputError(
            f"The trace holds {len(trace)} moments; Assumption 2 needs 3, the last one being θ*. Record longer."
        )
    steps, products, rests = step_products(trace)
    lengths = np.sqrt(steps * rests)
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return Acuteness(products, cosines, STANDARD_ERRORS * trace.cosine_error)


def step_products(trace: Trace) -> tuple[Floats, Floats, Floats]:
    """uᵀu, uᵀq and qᵀq of every recorded step but the last, u = θᵏ − θᵏ⁺¹ and q = θᵏ⁺¹ − θ*."""
    squared = trace.squared_parameter_distances[1:, 1:]
    if not np.isfinite(squared).all():
        raise InputError("The recorded parameters hold NaN or infinite values; take a run that did not diverge.")
    steps = np.diagonal(squared, 1)[:-1]
    to_goal = squared[:-1, -1]
    before, rests = to_goal[:-1], to_goal[1:]
    return steps.copy(), (before - steps - rests) / 2, rests.copy()


@named_options
def choose_batch_size(fractions: Mapping[int, float], accuracies: Mapping[int, float], threshold: float) -> int:
    """The paper's heuristic: from the smallest batch at which Assumption 2 always holds, go down to enough accuracy.

    Where the assumption holds at no size always, the search starts at the size where it holds most often.

    Args:
        fractions: for each batch size, the share of steps at which Assumption 2 holds (`acuteness(trace).fraction`).
        accuracies: for each batch size, the clean accuracy.
        threshold: the accuracy to reach; 0.8 on CIFAR-10 and 0.6 on CIFAR-100 in the paper.

    Returns:
        The batch size.

    >>> choose_batch_size({64: 0.7, 256: 1.0, 1000: 1.0}, {64: 0.85, 256: 0.75, 1000: 0.5}, threshold=0.8)
    64
    """
    if not fractions or set(fractions) != set(accuracies):
        raise InputError("Give a fraction and an accuracy for each of the same batch sizes, at least one.")
    every = {"threshold": [threshold], "accuracy": accuracies.values(), "fraction": fractions.values()}
    for what, share in ((what, share) for what, shares in every.items() for share in shares):
        if not 0 <= share <= 1:
            raise InputError(f"{what}={share:g} is no share; pass one between 0 and 1, such as 0.8.")
    always = [size for size, fraction in fractions.items() if fraction >= 1]
    most = max(fractions.values())
    start = min(always or [size for size, fraction in fractions.items() if fraction == most])
    for size in sorted((size for size in fractions if size <= start), reverse=True):
        if accuracies[size] >= threshold:
            return size
    best = max(accuracies[size] for size in fractions if size <= start)
    raise InputError(
        f"No batch size up to {start} reaches an accuracy of {threshold:g}; the best is {best:.4g}. "
        "Try smaller batches, train longer, or lower the threshold."
    )
