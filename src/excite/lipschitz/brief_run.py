"""A short run converges if its loss falls nine tenths as far as the best run's; lower rates get more time."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, variance
from typing import Any

from excite.errors import InputError

AS_FAR = 0.9  # share of the best run's fall in loss that a run needs; the same as for whole trainings
RISEN = 0.05  # share of that fall (before any: of the initial loss) by which the noise of slow runs may raise the loss
SURELY = 3.0  # standard errors
BLOWN_UP = 100.0  # times the initial loss, or the best run's fall


@dataclass(frozen=True)
class BriefRun:
    """A short training at one rate: the loss of each step that it took."""

    rate: float
    losses: tuple[float, ...]
    steps: int  # its full length; it may have been stopped before

    @property
    def initial(self) -> float:
        return self.losses[0]

    @property
    def final(self) -> float:
        """The mean over the last quarter; infinite if the run blew up."""
        return math.inf if self.blew_up else fmean(self.losses[-max(self.steps // 4, 1) :])

    @property
    def worst(self) -> float:
        """The largest mean over a quarter of the run; infinite if it blew up."""
        quarter = max(self.steps // 4, 1)
        starts = range(0, len(self.losses) - quarter + 1, quarter)
        return max([self.final, *(fmean(self.losses[start : start + quarter]) for start in starts)])

    @property
    def noise(self) -> float:
        """The standard error of the difference between two such final losses."""
        last = self.losses[-max(self.steps // 4, 2) :]
        return math.sqrt(2 * variance(last) / len(last)) if len(last) > 1 and not self.blew_up else 0.0

    @property
    def blew_up(self) -> bool:
        return not math.isfinite(self.losses[-1])


@dataclass(frozen=True)
class Before:
    """What the trained weights know that all runs start from: the loss of batches before training."""

    level: float
    spread: float  # from batch to batch

    @classmethod
    def of(cls, losses: Sequence[float]) -> "Before":
        return cls(fmean(losses), math.sqrt(variance(losses)))

    def noise(self, run: BriefRun) -> float:
        """How far the mean over a quarter of the run may be off by chance."""
        return SURELY * self.spread / math.sqrt(max(run.steps // 4, 1))

    def kept_by(self, run: BriefRun) -> bool:
        return run.worst <= self.level + self.noise(run)


@dataclass(frozen=True)
class Yardstick:
    """What runs are judged by: the initial loss, averaged over all of them, and the run whose loss fell the most."""

    initial: float
    best: BriefRun

    @classmethod
    def of(cls, runs: Sequence[BriefRun], before: "Before | None" = None) -> "Yardstick | None":
        """None if no loss fell."""
        if not runs:
            return None
        initial, best = fmean(run.initial for run in runs), min(runs, key=lambda run: run.final)
        initial = before.level if before else initial
        return cls(initial, best) if best.final < initial else None

    @property
    def fall(self) -> float:
        """How much the best run lowered the loss."""
        return self.initial - self.best.final

    @property
    def share(self) -> float:
        """The same, as a share of the initial loss."""
        return self.fall / abs(self.initial) if self.initial else math.inf

    def converged(self, run: BriefRun, noise: float = 0.0) -> bool:
        """`noise` is that of runs at lower rates than the best one, if it is larger than the best one's."""
        share = min(run.rate / self.best.rate, 1.0)
        noise = max(self.best.noise, noise) if share < 1 else self.best.noise
        return self.initial - run.final >= ((AS_FAR + RISEN) * share**2 - RISEN) * self.fall - noise


def converged(runs: Sequence[BriefRun], *, before: Before | None = None) -> list[bool]:
    """Whether each run converged, judged by the best of those that are no longer than it.

    A run converges if its loss, averaged over its last quarter, has fallen at least 0.9 times as far as the best run's,
    minus one standard error of such an average. Lower rates progress more slowly: at k times the best run's rate,
    k < 1, the loss only needs to fall 0.95 k² − 0.05 times as far.

    If all runs start from trained weights, with the loss `before`, a run must also keep what these know: in none of its
    quarters may the mean loss exceed that one by more than chance explains.

    >>> runs = [BriefRun(rate, (2.3, loss), 2) for rate, loss in [(0.1, 2.25), (0.4, 1.3), (0.8, 1.35), (1.6, 2.2)]]
    >>> converged(runs)
    [True, True, True, False]
    """
    lengths = {run.steps for run in runs}
    yardsticks = {steps: Yardstick.of([run for run in runs if run.steps <= steps], before) for steps in lengths}
    return [_converged(run, yardsticks[run.steps], before) for run in runs]


def _converged(run: BriefRun, yardstick: Yardstick | None, before: Before | None) -> bool:
    if before is not None:
        return before.kept_by(run) and (yardstick is None or yardstick.converged(run, before.noise(run)))
    if yardstick is None:  # no run has learned; those whose loss rose are the ones whose rate was too high
        return not run.blew_up and max(run.losses) <= run.initial + RISEN * abs(run.initial)
    return yardstick.converged(run)


def train_briefly(losses: Iterable[float], *, rate: float, steps: int, so_far: Sequence[BriefRun] = ()) -> BriefRun:
    """Take `steps` losses, numbers or tensors of one element, or fewer if the run blows up.

    A run that only falls behind the best one is not stopped: it may recover once its schedule decays.

    Raises InputError if there are too few losses, or if the first one is not finite: no rate has been used by then.
    """
    if not isinstance(losses, Iterable):
        raise InputError(f"A short training returned a {type(losses).__name__}; yield the loss of every step.")
    yardstick, taken = Yardstick.of(so_far), list[float]()
    for loss in map(_number, islice(losses, steps)):
        taken.append(loss)
        if not math.isfinite(taken[0]):
            raise InputError(f"The first loss is {loss}, before any step. Check the data, the weights and the loss.")
        if _blown_up(loss, taken[0], yardstick):
            return BriefRun(rate, (*taken[:-1], math.inf), steps)
    if len(taken) < steps:
        raise InputError(
            f"The short training at rate {rate:.3g} yielded {len(taken)} losses instead of {steps}. Yield one loss per "
            f"step, or pass steps={max(len(taken), 1)}."
        )
    return BriefRun(rate, tuple(taken), steps)


def _number(loss: Any) -> float:
    try:
        return float(loss.item() if hasattr(loss, "item") else loss)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"The loss of a step must be one number, not {str(loss)[:80]}.") from error


def _blown_up(loss: float, initial: float, yardstick: Yardstick | None) -> bool:
    scale = max(abs(initial), yardstick.fall if yardstick else 0.0) or math.inf  # a loss may begin at 0
    return not loss - initial < BLOWN_UP * scale
