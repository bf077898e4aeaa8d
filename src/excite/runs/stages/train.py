"""One arm's training: its weights and the best of them, its trace, what is measured after each epoch, and its end."""

import logging
import math
import shutil
from dataclasses import asdict

from torch import nn

from excite.console import Speaker
from excite.data.dataset import unit_floats
from excite.errors import DivergedError, InputError
from excite.evaluation import evaluate
from excite.files import write_json
from excite.lipschitz.online import OnlineRate
from excite.randomness import device_of, undisturbed
from excite.runs.assemble import Parts
from excite.runs.experiment import Data, Record
from excite.runs.folder import ArmFolder
from excite.runs.stored import Outcome
from excite.schedules import rescale
from excite.training import checkpoints
from excite.training.distributed import Ranks

logger = logging.getLogger(__name__)


def train(parts: Parts, arm: ArmFolder, rate: float, console: Speaker, ranks: Ranks, *, climb: bool = False) -> None:
    """Train from the rate η¹ on, with the baseline's schedule; one that diverges leaves that as its outcome.

    One that may `climb` leaves the rate that it found there, and no trace: what is rolled back has no place in one.
    """
    problem = None
    model = parts.new_model()
    optimizer = parts.new_optimizer(model, rate)
    recorder = None if climb else parts.new_recorder(model, optimizer, arm.moments)
    online = OnlineRate(model, optimizer, steps=parts.whole_training) if climb else None
    schedule = rescale(parts.schedule, rate, horizon=parts.experiment.training.epochs)
    with console.task(f"{arm.name}: training {'from' if climb else 'at'} rate {rate:.4g}") as progress:
        try:
            parts.fit(
                model,
                parts.training_set,
                optimizer,
                online.follow(schedule) if online else schedule,
                folder=arm.path,
                recorder=recorder,
                online=online,
                after_epoch=lambda model: epoch_accuracies(parts, model) | keep_best(parts, arm, model),
                on_epoch=lambda metrics: logger.debug("%s, %s", arm.name, metrics),
                on_progress=progress,
                ranks=ranks,
            )
        except DivergedError as error:
            problem = str(error)

    def conclude() -> None:
        if recorder:
            recorder.trace.save(arm.trace_file)
        seconds = sum(metrics.seconds for metrics in arm.epochs)  # of every process before this one, too
        outcome = Outcome(
            rate=online.rate if online else rate,
            seconds=seconds,
            problem=problem,
            epochs=len(arm.epochs),
            batch_size=parts.batch_size,
            steps=len(arm.epochs) * parts.steps_per_epoch,
            train_accuracy=None if problem else train_accuracy(parts, model),
            largest_batch=parts.largest_batch,
        )
        write_json(arm.outcome_file, asdict(outcome))
        shutil.rmtree(arm.moments, ignore_errors=True)
        if problem:
            console.say(f"{arm.name}: {problem}")
        elif arm.epochs:
            console.say(f"{arm.name}: {arm.epochs[-1]}")

    ranks.from_first(conclude)


def check_recording(parts: Parts) -> None:
    """Refuse to record accuracies under an attack that the experiment does not have, and what nothing would heed."""
    record, epoch_samples = parts.experiment.record, parts.experiment.data.epoch_samples
    if not record.best_every and record.held_out_examples != Record().held_out_examples:
        raise InputError("record.held_out_examples would be ignored: it needs record.best_every. Set both, or neither.")
    if parts.pseudo_labelled is None and epoch_samples != Data(name="").epoch_samples:
        raise InputError(
            "data.epoch_samples would be ignored: it counts images where some are pseudo-labelled, and here are none. "
            "Leave it out; data.train_examples takes a part of the images, training.steps fewer steps."
        )
    for name in ("attacked_examples", "best_every"):
        if getattr(record, name) and not parts.attacks:
            raise InputError(f"record.{name} needs an attack; name one under [attacks], or set it to 0.")


def epoch_accuracies(parts: Parts, model: nn.Module) -> dict[str, float]:
    """For the curves: accuracy on the first test images, and under the first attack if the experiment records that.

    The training does not notice: batch-norm statistics, modes and random generators are left as they were.
    """
    attacked = parts.experiment.record.attacked_examples
    first = dict(list(parts.attacks.items())[:1])
    device = next(model.parameters()).device
    images, labels = (
        unit_floats(parts.test.images[: parts.experiment.record.test_examples]).to(device),
        parts.test.labels.to(device),
    )
    with undisturbed(model, device):
        clean = evaluate(model, images, labels[: len(images)], {}, checks=False)
        measured = {"test_accuracy": clean.clean.value}
        if attacked:
            images = unit_floats(parts.test.images[:attacked]).to(device)
            seed = parts.experiment.seed
            robust = evaluate(model, images, labels[: len(images)], first, checks=False, seed=seed)
            measured["robust_accuracy"] = robust.worst.value
            measured["attacked_clean_accuracy"] = robust.clean.value  # of the same images
    return measured


def train_accuracy(parts: Parts, model: nn.Module) -> float:
    """Accuracy on the first images that it was trained on, as they are, without augmentation."""
    device = device_of(model)
    images = unit_floats(parts.train.images[: parts.experiment.record.test_examples]).to(device)
    with undisturbed(model, device):
        return evaluate(model, images, parts.train.labels[: len(images)].to(device), {}, checks=False).clean.value


MEASURED = "held_out_accuracy"


def keep_best(parts: Parts, arm: ArmFolder, model: nn.Module) -> dict[str, float]:
    """Look at the model every few epochs, and keep its weights if none before stood better; training does not notice.

    What came before is read from the epochs written down, so a training that goes on after a stop keeps the same ones.
    """
    every, held_out = parts.experiment.record.best_every, parts.held_out
    before = ArmFolder(arm.path).epochs
    epoch = len(before) + 1
    if held_out is None or (epoch % every and epoch != parts.experiment.training.epochs):
        return {}
    device = device_of(model)
    first = dict(list(parts.attacks.items())[:1])
    with undisturbed(model, device):
        images, labels = held_out.floats().to(device), held_out.labels.to(device)
        found = evaluate(model, images, labels, first, checks=False, seed=parts.experiment.seed).worst.value
    if found > max((past.extra.get(MEASURED, -math.inf) for past in before), default=-math.inf):
        checkpoints.save_model(checkpoints.weights_file(arm.best.path, epoch), model, {"epoch": epoch, MEASURED: found})
    return {MEASURED: found}
