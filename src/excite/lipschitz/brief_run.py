"""A short run converges if its loss falls nine tenths as far as the best run's; lower rates get more time."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, variance
from typing import Any

from excite.errors import InputError

AS_FAR = 0.9  # of the way down that the best run has come: the same as for whole trainings
RISEN = 0.05  # of the best run's way down (before there is one: of the initial loss): the noise of very slow runs
BLOWN_UP = 100.0  # times the initial loss, or the best run's way down


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
        return self.loss_at(len(self.losses), self.steps // 4)

    @property
    def noise(self) -> float:
        """The standard error of the difference between two such final losses."""
        last = self.losses[-max(self.steps // 4, 2) :]
        return math.sqrt(2 * variance(last) / len(last)) if len(last) > 1 and not self.blew_up else 0.0

    @property
    def blew_up(self) -> bool:
        return not math.isfinite(self.losses[-1])

    def loss_at(self, step: int, window: int) -> float:
        """The mean over `window` steps up to this one."""
        recent = self.losses[max(min(step, len(self.losses)) - max(window, 1), 0) : step]
        return fmean(recent) if math.isfinite(recent[-1]) else math.inf


@dataclass(frozen=True)
class Yardstick:
    """What runs are judged by: the initial loss, averaged over all of them, and the run whose loss fell the most."""

    initial: float
    best: BriefRun

    @classmethod
    def of(cls, runs: Sequence[BriefRun]) -> "Yardstick | None":
        """None if no loss fell."""
        if not runs:
            return None
        initial, best = fmean(run.initial for run in runs), min(runs, key=lambda run: run.final)
        return cls(initial, best) if best.final < initial else None

    @property
    def way_down(self) -> float:
        return self.initial - self.best.final

    @property
    def share(self) -> float:
        """Of the initial loss that is gone."""
        return self.way_down / abs(self.initial) if self.initial else math.inf

    def converged(self, run: BriefRun) -> bool:
        needed = (AS_FAR + RISEN) * min(run.rate / self.best.rate, 1.0) ** 2 - RISEN
        return self.initial - run.final >= needed * self.way_down - self.best.noise


def converged(runs: Sequence[BriefRun]) -> list[bool]:
    """Whether each run converged, judged by the best of those that are no longer than it.

    A run converges if its loss, averaged over its last quarter, has fallen at least 0.9 times as far as the best run's,
    minus one standard error of such an average. Lower rates progress more slowly: at k times the best run's rate,
    k < 1, the loss only needs to fall 0.95 k² − 0.05 times as far.

    >>> runs = [BriefRun(rate, (2.3, loss), 2) for rate, loss in [(0.1, 2.25), (0.4, 1.3), (0.8, 1.35), (1.6, 2.2)]]
    >>> converged(runs)
    [True, True, True, False]
    """
    yardsticks = {steps: Yardstick.of([run for run in runs if run.steps <= steps]) for steps in {r.steps for r in runs}}
    return [_converged(run, yardsticks[run.steps]) for run in runs]


def _converged(run: BriefRun, yardstick: Yardstick | None) -> bool:
    if yardstick is None:  # no run has learned; those whose loss rose are the ones whose rate was too high
        return not run.blew_up and max(run.losses) <= run.initial + RISEN * abs(run.initial)
    return yardstick.converged(run)


def train_briefly(losses: Iterable[float], *, rate: float, steps: int, so_far: Sequence[BriefRun] = ()) -> BriefRun:
    """Take `steps` losses, numbers or tensors of one element, or fewer if the run blows up.

    A run that only falls behind the best one is not stopped: it may recover once its schedule decays.

    Raises InputError if there are too few losses, or if the first one is not finite: no rate has been used by then.
    """
    if not isinstance(losses, Iterable):
        raise InputError(
            f"A short training gave a {type(losses).__name__} for its losses. Yield the loss of each step: "
            "`yield loss.item()` in the loop."
        )
    yardstick, taken = Yardstick.of(so_far), list[float]()
    for given in islice(losses, steps):
        loss = _number(given)
        taken.append(loss)
        if not math.isfinite(taken[0]):
            raise InputError(
                f"The first loss is {loss}, before any step was taken, so no rate can be blamed. "
                "Check the data, the initial weights and the loss."
            )
        if _blown_up(loss, taken[0], yardstick):
            return BriefRun(rate, (*taken[:-1], math.inf), steps)
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


def _blown_up(loss: float, initial: float, yardstick: Yardstick | None) -> bool:
    scale = max(abs(initial), yardstick.way_down if yardstick else 0.0) or math.inf  # a loss may begin at 0
    return not loss - initial < BLOWN_UP * scale
