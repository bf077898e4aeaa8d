"""The state of a training: what it has reached, how it is saved and resumed, and how it is stopped."""

import contextlib
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from excite.errors import DivergedError, InputError, InterruptedRunError
from excite.files import expected
from excite.lipschitz.online import OnlineRate
from excite.schedules import ScheduledRate
from excite.trace import Recorder
from excite.training import (
    CHECKPOINT,
    EpochMetrics,
    TrainingHistory,
    append_metrics,
    checkpoints,
    rewind_metrics,
)
from excite.training.checkpoints import Identity
from excite.training.collapse import broken_number, diagnose, highest_by_chance, measured_by, overfitted
from excite.training.distributed import Ranks

KEPT = 16  # losses kept of the first batches; they tell an easy first batch from a rise of the loss
ONLINE, AVERAGED = "online.", "averaged."  # prefixes of the names of their tensors in a checkpoint


@dataclass
class Position:
    """The number of finished epochs, the steps into the next one, and the losses of that epoch so far."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class ResumableRun:
    """A training that can be saved and resumed; without a folder it saves nothing.

    With several `ranks`, every process calls every method, and only the first one writes to the folder.
    """

    folder: Path | None
    model: nn.Module
    optimizer: Optimizer
    scheduler: ScheduledRate
    recorder: Recorder | None
    identity: Identity
    epochs: int
    batch_size: int
    guessing: float | None  # the loss of a network that guesses, if that is known
    online: OnlineRate | None
    averaged: AveragedModel | None
    ranks: Ranks
    position: Position = field(default_factory=Position)
    first_losses: list[float] = field(default_factory=list)
    finished: list[EpochMetrics] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.online and self.averaged:
            raise InputError(
                "The average would keep steps that `online` rolls back. Pass online or averaged, not both."
            )
        if self.folder and self._restore(self.folder):
            return
        if problem := broken_number(self.model, self.optimizer):
            raise InputError(f"Before the first step, {problem}. Start from finite weights.")
        if self.folder:
            self.ranks.from_first(partial(rewind_metrics, self.folder, 0))  # of a training without its checkpoint
            self.save()

    def _restore(self, folder: Path) -> bool:
        """Continue from the checkpoint in the folder; return whether there is one."""
        rate_of = None if self.online else lambda epoch: self.scheduler.rates(epoch)[0]  # an online rate changes
        checkpoints.check_same(folder, self.identity, epochs=self.epochs, rate_of=rate_of)
        saved = checkpoints.restore(folder, self.model, self.optimizer, rank=self.ranks.rank)
        if not saved:
            return False
        facts, extra = saved
        with expected(folder / CHECKPOINT):
            self.position = Position(**facts["position"])
            self.first_losses = facts["first_losses"]
            self.scheduler.load_state_dict(facts["scheduler"])
            if self.position.step:  # or torch warns that the scheduler steps first
                self.optimizer._opt_called = True  # type: ignore[attr-defined]
            if self.recorder:
                self.recorder.restore(extra, facts["recorder"])
            if self.online:
                self.online.restore(checkpoints.with_prefix(extra, ONLINE), facts["online"])
            if self.averaged:
                self.averaged.load_state_dict(checkpoints.with_prefix(extra, AVERAGED))
        self.finished = self.ranks.from_first(partial(rewind_metrics, folder, self.position.epoch))
        return True

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def initial_loss(self) -> float:
        return self.first_losses[0] if self.first_losses else 0.0

    @property
    def training(self) -> TrainingHistory:
        return TrainingHistory(tuple(self.finished), self.initial_loss)

    def save(self) -> None:
        """Save a checkpoint if all weights are finite; all processes wait until it is saved."""
        self.check_weights()
        if not self.folder:
            return
        of_rank = checkpoints.own_state(self.model)
        if self.online:
            of_rank |= _prefixed(checkpoints.EXTRA + ONLINE, self.online.own_state())
        _, *others = self.ranks.gather(of_rank)
        if self.ranks.first:
            weights = checkpoints.weights_file(self.folder, self.position.epoch, self.position.step)
            facts: dict[str, Any] = {
                "identity": self.identity,
                "position": asdict(self.position),
                "rates": [metrics.rate for metrics in self.finished] + [self.rate] * bool(self.position.step),
                "first_losses": self.first_losses,
                "scheduler": self.scheduler.state_dict(),
            }
            extra, facts["recorder"] = self.recorder.state() if self.recorder else ({}, None)
            if self.online:
                tensors, facts["online"] = self.online.state()
                extra = extra | _prefixed(ONLINE, tensors)
            if self.averaged:
                extra = extra | _prefixed(AVERAGED, self.averaged.state_dict())
            checkpoints.save(weights, self.model, self.optimizer, facts, extra, others=others)
        self.ranks.gather(None)

    def gather(self, losses: list[float], seconds: float) -> None:
        """Add the losses and the time of a part of an epoch."""
        for loss in losses:
            self.check(loss)
        self.position.losses += losses
        self.position.seconds += seconds
        if self.position.epoch == 0:
            self.first_losses = self.position.losses[:KEPT]

    def take_back(self, steps: int, losses: list[Tensor]) -> None:
        """Forget the losses of the last steps of this epoch, here and in `losses`, because they were rolled back."""
        before = max(steps - len(losses), 0)
        del losses[len(losses) - min(steps, len(losses)) :]
        del self.position.losses[max(len(self.position.losses) - before, 0) :]

    def check(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise self.diverged(f"the loss became {loss}")

    def check_weights(self) -> None:
        """Raise DivergedError if a weight is not finite; the losses may still have been."""
        problem = broken_number(self.model, self.optimizer)
        if self.ranks.agreed(1 if problem else None):
            raise self.diverged(problem or "the weights of another process are no longer finite")

    def finish_epoch(
        self,
        measures: Iterable[Callable[[nn.Module], dict[str, float]] | None],
        measure_again: Callable[[int], list[float]],
    ) -> EpochMetrics:
        """End the epoch and record its metrics, with the numbers that `measures` return for the model.

        `measure_again(n)` returns the losses of the first n batches of the training with the current weights. It is
        called if the loss is above its initial value.
        """
        self.check_weights()
        measured = [self.ranks.from_first(partial(measure, self.model)) for measure in measures if measure]
        extra = {name: float(value) for numbers in measured for name, value in numbers.items()}
        position = self.position
        losses = position.losses or [self.initial_loss]  # a whole epoch may have been rolled back
        loss = sum(losses) / len(losses)
        if not self.online:  # it checks that itself
            self._check_collapse(loss, measure_again)
        metrics = EpochMetrics(position.epoch + 1, self.rate, loss, position.seconds, extra)
        self.finished.append(metrics)
        if self.ranks.first:
            if problem := overfitted([metrics.extra for metrics in self.finished]):
                warnings.warn(problem, stacklevel=3)
            if self.folder:
                append_metrics(self.folder, metrics)
        if self.recorder:
            self.recorder.record()
        self.scheduler.step()
        self.position = Position(epoch=position.epoch + 1)
        return metrics

    def _check_collapse(self, loss: float, measure_again: Callable[[int], list[float]]) -> None:
        """Raise DivergedError if the training has collapsed in an epoch of this mean loss."""
        losses, steps = [*(metrics.loss for metrics in self.finished), loss], self.position.step
        reference, what = measured_by(self.initial_loss, self.guessing, self.batch_size)
        taken = self.position.losses
        problem = partial(
            diagnose,
            losses,
            reference,
            steps=steps,
            images=steps * self.batch_size,
            over=self.position.epoch + 1 == self.epochs,
            ending=fmean(taken[len(taken) // 2 :]),
            what=what,
        )
        if not problem():
            return
        by_chance = highest_by_chance(self.first_losses, measure_again(KEPT), steps)
        if remaining := problem(by_chance=by_chance):
            raise self.diverged(remaining)

    def diverged(self, problem: str) -> DivergedError:
        kept = " The last good checkpoint is in the run folder." if self.folder else ""
        return DivergedError(
            f"Training diverged in epoch {self.position.epoch + 1} at learning rate {self.rate:.4g}: {problem}. "
            f"Train at a lower rate.{kept}"
        )

    def interrupted(self, signal_number: int) -> InterruptedRunError:
        """Return the error that stops the training; after its last epoch, it stops the caller."""
        saved = (
            f"Saved in {self.folder}: run the same command again to resume." if self.folder else "Nothing was saved."
        )
        return InterruptedRunError(
            f"Interrupted after {self.position.epoch} of {self.epochs} epochs. {saved}", signal_number
        )


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield a list that gets the number of the first SIGINT or SIGTERM in the block; a second signal acts at once.

    Ignored signals stay ignored. Outside the main thread, do nothing.
    """
    received, before = list[int](), dict[int, Any]()

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[number])

    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if (handler := signal.getsignal(number)) != signal.SIG_IGN:
                    before[number] = handler
                    signal.signal(number, remember)
        yield received
    finally:
        for held, handler in before.items():
            signal.signal(held, handler)
