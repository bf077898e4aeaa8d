"""What else differs between arms besides η¹: what a reader should rule out before crediting 1/L or 2/L."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

from excite.runs.folder import ArmFolder, RunFolder
from excite.training.history import EpochMetrics


@dataclass(frozen=True)
class Confounders:
    """Of one training, or the means of several: what is known to matter by itself, and how far it came.

    None where it is not known, as of trainings that older versions wrote down.
    """

    batch_size: float  # B
    rate_per_image: float  # η¹/B
    rate_times_decay: float  # η¹·λ
    steps: float | None
    steps_after_drop: float | None  # past the schedule's last drop; None where it never drops
    final_rate: float | None
    final_loss: float | None  # mean over the batches of the last epoch
    train_accuracy: float | None  # at the end, a share


def confounders(run: RunFolder, arm: ArmFolder) -> Confounders:
    training, epochs = run.experiment.training, arm.epochs
    batch_size = arm.batch_size or training.batch_size
    last = epochs[-1] if epochs else None
    after = _epochs_after_drop(epochs)
    return Confounders(
        batch_size=batch_size,
        rate_per_image=arm.rate / batch_size,
        rate_times_decay=arm.rate * training.weight_decay,
        steps=arm.steps,
        steps_after_drop=None if after is None or arm.steps is None else arm.steps * after / len(epochs),
        final_rate=last.rate if last else None,
        final_loss=last.loss if last and math.isfinite(last.loss) else None,
        train_accuracy=arm.train_accuracy,
    )


def mean_of(several: Sequence[Confounders]) -> Confounders:
    """Over seeds, of those that are known.

    >>> one, other = (Confounders(32, 0.1, 0.0, steps, None, 0.1, 1.0, None) for steps in (10, 30))
    >>> mean_of([one, other]).steps, mean_of([one, other]).train_accuracy
    (20.0, None)
    """
    means: dict[str, Any] = {}
    for field in fields(Confounders):
        known = [value for one in several if (value := getattr(one, field.name)) is not None]
        means[field.name] = fmean(known) if known else None
    return Confounders(**means)


def _epochs_after_drop(epochs: Sequence[EpochMetrics]) -> int | None:
    """With the last rate, if another one came before it."""
    drops = [
        number
        for number in range(1, len(epochs))
        if not math.isclose(epochs[number].rate, epochs[number - 1].rate, rel_tol=1e-9)
    ]
    return len(epochs) - drops[-1] if drops else None
