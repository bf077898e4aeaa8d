"""One arm's training: its weights, its trace, its epochs, and how it ended."""

import logging
import shutil

from excite.errors import DivergedError
from excite.runs.assemble import Parts
from excite.runs.folder import ArmFolder
from excite.runs.stages.best import keep_best
from excite.runs.stages.console import Console
from excite.runs.stages.epoch_accuracies import epoch_accuracies, train_accuracy
from excite.schedules import rescale
from excite.training.distributed import Ranks

logger = logging.getLogger(__name__)


def train(parts: Parts, arm: ArmFolder, rate: float, console: Console, ranks: Ranks) -> None:
    """Train from the rate η¹ on, with the baseline's schedule; one that diverges leaves that as its outcome."""
    problem = None
    if ranks.first:
        for stale in arm.path.glob(".*.part"):  # of a training that was killed: only one trains here at a time
            stale.unlink(missing_ok=True)
    model = parts.new_model()
    optimizer = parts.new_optimizer(model, rate)
    recorder = parts.new_recorder(model, optimizer, arm.moments)
    with console.task(f"{arm.name}: training at rate {rate:.4g}") as progress:
        try:
            parts.fit(
                model,
                parts.training_set,
                optimizer,
                rescale(parts.schedule, rate, horizon=parts.experiment.training.epochs),
                folder=arm.path,
                recorder=recorder,
                after_epoch=lambda model: epoch_accuracies(parts, model) | keep_best(parts, arm, model),
                on_epoch=lambda metrics: logger.debug("%s, %s", arm.name, metrics),
                on_step=progress,
                ranks=ranks,
            )
        except DivergedError as error:
            problem = str(error)

    def conclude() -> None:
        recorder.trace.save(arm.trace_file)
        seconds = sum(metrics.seconds for metrics in arm.epochs)  # of every process before this one, too
        arm.end(
            rate=rate,
            seconds=seconds,
            problem=problem,
            batch_size=parts.experiment.training.batch_size,
            train_accuracy=None if problem else train_accuracy(parts, model),
        )
        shutil.rmtree(arm.moments, ignore_errors=True)
        if problem:
            console.say(f"{arm.name}: {problem}")
        elif arm.epochs:
            console.say(f"{arm.name}: {arm.epochs[-1]}")

    ranks.from_first(conclude)
