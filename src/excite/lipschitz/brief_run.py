"""A short training ended well if it came nearly as far down as the best ones; a slow one only must not have risen."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from excite.errors import InputError

AS_FAR = 2 / 3  # of the best runs' way down; in whole trainings, which have time to catch up, it is 3/4
AMONG_THE_BEST = 0.8  # of the best run's way down
SLOWER = 0.5  # times the best runs' rate: below it, a run that has not come as far may just need more time
RISEN = 0.05  # of the best runs' way down (none yet: of the initial loss): what a slow run may be above its beginning
LEFT_BEHIND = 0.05  # of the best run's way down at the same step: not worth training on
ON_ITS_WAY = 0.2  # of its way down: before, the best run has left nobody behind, it is on the plateau itself
LATE = 0.75  # of a run: from here on it may be left behind; many a run recovers before
FAR = 1.5  # times the largest rate that ended well: the farther above it, the sooner a run may be left behind
SOONEST = 0.3  # of a run: but not before
AHEAD = 2.0  # times the largest rate of a complete run that ended well: beyond, its mark may be too low
BLOWN_UP = 100.0  # times the initial loss, or the best run's way down


@dataclass(frozen=True)
class BriefRun:
    """A short training at one rate: its losses, as long as it was worth training."""

    rate: float
    losses: tuple[float, ...]
    steps: int  # that it was to take
    arrived: bool = False  # it had come far enough before

    @property
    def initial(self) -> float:
        return self.losses[0]

    @property
    def final(self) -> float:
        """The mean over the last quarter; infinite if the loss was not finite in the end."""
        return self.loss_at(len(self.losses), self.steps // 4)

    @property
    def way_down(self) -> float:
        return self.initial - self.final

    def loss_at(self, step: int, window: int) -> float:
        """The mean over `window` steps up to this one."""
        recent = self.losses[max(min(step, len(self.losses)) - max(window, 1), 0) : step]
        return math.fsum(recent) / len(recent) if math.isfinite(recent[-1]) else math.inf


@dataclass(frozen=True)
class Reference:
    """What the best runs reached, to judge the others by: the mean over those nearly as good as the best."""

    rate: float
    way_down: float
    best: BriefRun

    @classmethod
    def among(cls, runs: Sequence[BriefRun]) -> "Reference | None":
        """None where no run came down."""
        farthest = max(runs, key=lambda run: run.way_down, default=None)
        if farthest is None or farthest.way_down <= 0:
            return None
        best = [run for run in runs if run.way_down >= AMONG_THE_BEST * farthest.way_down]
        rate = math.exp(math.fsum(math.log(run.rate) for run in best) / len(best))
        return cls(rate, math.fsum(run.way_down for run in best) / len(best), farthest)

    def ended_well(self, run: BriefRun) -> bool:
        """At least 2/3 as far down; at k times the rate, k < 1, k² of that; below half the rate, not risen."""
        relative = run.rate / self.rate
        share = AS_FAR * min(relative, 1.0) ** 2 if relative >= SLOWER else -RISEN
        return run.arrived or run.way_down >= share * self.way_down


def ended_well(runs: Sequence[BriefRun]) -> list[bool]:
    """The verdict on each run, in the light of all of them.

    A run ends well when its loss over its last quarter has come at least 2/3 as far down from its first loss as the
    best runs did on average. Slower rates are excused, for they have had less time, above all where the
    loss begins with a plateau.

    >>> runs = [BriefRun(rate, (2.3, loss), 2) for rate, loss in [(0.1, 2.25), (0.4, 1.3), (0.8, 1.4), (1.6, 2.0)]]
    >>> ended_well(runs)
    [True, True, True, False]
    """
    reference = Reference.among(runs)
    if reference is None:  # nothing learned so far: some may have been too slow, those that were tossed about were not
        return [max(run.losses) <= run.initial + RISEN * abs(run.initial) for run in runs]
    return [reference.ended_well(run) for run in runs]


def train_briefly(losses: Iterable[float], *, rate: float, steps: int, so_far: Sequence[BriefRun] = ()) -> BriefRun:
    """Take `steps` losses, numbers or tensors of one, or fewer where the rest would hardly change the verdict.

    A run is over when it has blown up, when the best run `so_far` left it far behind, or when it has come far enough:
    at rates for which complete runs have said how far that is, and anywhere once 2/3 of a loss that is never negative
    are gone.

    Raises InputError where there are too few losses, or the first one is not finite: no rate has had a say in that.
    """
    if not isinstance(losses, Iterable):
        raise InputError(
            f"A short training gave a {type(losses).__name__} for its losses. Yield the loss of each step: "
            "`yield loss.item()` in the loop."
        )
    judge, window, taken = _Judge(rate, steps, so_far), max(steps // 8, 1), []
    for given in islice(losses, steps):
        loss = _number(given)
        taken.append(loss)
        if not math.isfinite(taken[0]):
            raise InputError(
                f"The first loss is {loss}, before any step was taken, so no rate can be blamed. "
                "Check the data, the initial weights and the loss."
            )
        if judge.blown_up(loss, taken[0]):
            return BriefRun(rate, (*taken[:-1], math.inf), steps)
        if 2 * window <= len(taken) < steps:
            way_down = taken[0] - math.fsum(taken[-window:]) / window
            if judge.far_enough(way_down, taken[0]):
                return BriefRun(rate, tuple(taken), steps, arrived=True)
            if judge.left_behind(way_down, len(taken), window):
                break
    else:
        if len(taken) < steps:
            raise InputError(
                f"At rate {rate:.3g} there came {len(taken)} losses, and a short training takes {steps} steps. "
                f"Yield a loss per step for as long as they are asked for, or pass steps={max(len(taken), 1)}."
            )
    return BriefRun(rate, tuple(taken), steps)


def _number(loss: Any) -> float:
    try:
        return float(loss.item() if hasattr(loss, "item") else loss)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"The loss of a step must be one number, not {str(loss)[:80]}.") from error


class _Judge:
    """What the runs so far say about one more, while it trains."""

    def __init__(self, rate: float, steps: int, so_far: Sequence[BriefRun]) -> None:
        self.reference = Reference.among(so_far)
        good = [run for run, well in zip(so_far, ended_well(so_far), strict=True) if well]
        complete = [run.rate for run in good if not run.arrived]
        self.comparable = bool(complete) and min(complete) <= rate <= AHEAD * max(complete)
        self.ends_at_zero = self.reference is not None and min(min(run.losses) for run in so_far) >= 0
        self.faster = self.reference is not None and rate >= self.reference.best.rate
        largest = max((run.rate for run in good), default=rate)
        self.late = steps * max(LATE * min(FAR * largest / rate, 1.0), SOONEST)

    def blown_up(self, loss: float, initial: float) -> bool:
        way_down = self.reference.way_down if self.reference else 0.0
        scale = max(abs(initial), way_down) or math.inf  # of a loss that begins at 0 nobody knows it yet
        return not loss - initial < BLOWN_UP * scale

    def far_enough(self, way_down: float, initial: float) -> bool:
        if self.comparable and self.reference and way_down >= AS_FAR * self.reference.way_down:
            return True
        return self.ends_at_zero and way_down >= AS_FAR * initial

    def left_behind(self, way_down: float, step: int, window: int) -> bool:
        if self.reference is None or not self.faster or step < self.late:
            return False
        best = self.reference.best
        mark = best.initial - best.loss_at(step, window)
        return mark >= ON_ITS_WAY * self.reference.way_down and way_down < LEFT_BEHIND * mark
