"""A run has lost its way when its loss is not finite, or is back where it started."""

import math
from collections.abc import Sequence

LEARNED = 0.9  # of its initial value: an epoch below this has learned something
MARGIN = 0.02  # of the initial value: what a single first batch may be off by


def diagnose(losses: Sequence[float], initial: float) -> str | None:
    """Say what went wrong, given the mean loss of each epoch so far and the loss of the very first batch.

    A collapse is an epoch clearly above the initial loss, or one that is back at it after an earlier epoch had learned:
    a collapsed classifier guesses, and guessing costs about what an untrained network costs.

    >>> diagnose([0.9, 0.5], initial=2.3) is None
    True
    >>> diagnose([0.9, 2.3], initial=2.3)
    'the loss, 0.9 in the best epoch, is back at 2.3, its initial value'
    """
    last = losses[-1]
    if not math.isfinite(last):
        return f"the loss became {last}"
    if last > initial * (1 + MARGIN):
        return f"the loss over an epoch was {last:.3g}, above its initial value {initial:.3g}"
    if min(losses) < initial * LEARNED and last > initial * (1 - MARGIN):
        return f"the loss, {min(losses):.2g} in the best epoch, is back at {last:.3g}, its initial value"
    return None
