"""Train one arm: its last, best and averaged weights, its trace, the accuracies after each epoch, and its outcome."""

import logging
import math
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from excite.data import Split
from excite.errors import DivergedError
from excite.evaluation import Evaluation, evaluate
from excite.lipschitz.online import OnlineRate
from excite.randomness import derive_seed, device_of, drawing_from, undisturbed
from excite.runs.arms import Arm
from excite.runs.assemble import Parts
from excite.runs.folder import ArmFolder
from excite.runs.records import Outcome
from excite.schedules import Schedule, rescale
from excite.training import checkpoints
from excite.training.distributed import Ranks
from excite.training.loop import train

if TYPE_CHECKING:
    from excite.runs.procedure import Run

HELD_OUT_ACCURACY = "held_out_accuracy"

logger = logging.getLogger(__name__)


def train_arm(run: "Run", chosen: Arm, ranks: Ranks) -> None:
    """Train with the baseline's schedule, rescaled to start at the arm's rate. Divergence is recorded as the outcome.

    An arm that finds its rate during training records the rate it has found. It leaves no trace, because a trace cannot
    describe steps that are rolled back.
    """
    baseline, default, arm, problem = run.parts.schedule(0), run.parts.batch_size, run.files.arm(chosen.name), None
    rate = ranks.from_first(lambda: run.files.first_rate(chosen, baseline))
    size = ranks.from_first(lambda: run.files.batch_size(chosen, baseline, default))
    parts = run.parts.in_batches_of(size)
    model = parts.new_model()
    optimizer = parts.new_optimizer(model, rate)
    online = OnlineRate(model, optimizer, steps=parts.whole_training) if chosen.finds_its_rate else None
    recorder = None if online else parts.new_recorder(model, optimizer, arm.moments)
    averaged = None if online else parts.new_average(model)
    schedule = rescale(parts.schedule, rate, horizon=parts.experiment.training.epochs)
    title = f"{arm.name}: training {'from' if online else 'at'} rate {rate:.4g}"
    with run.console.task(title) as progress:
        try:
            fit(
                parts,
                model,
                optimizer,
                online.follow(schedule) if online else schedule,
                folder=arm.path,
                recorder=recorder,
                online=online,
                averaged=averaged,
                after_epoch=lambda model: epoch_accuracies(parts, model) | keep_best(parts, arm, model),
                on_epoch=lambda metrics: logger.debug("%s, %s", arm.name, metrics),
                on_progress=progress,
                ranks=ranks,
            )
        except DivergedError as error:
            problem = str(error)

    def conclude() -> None:
        first_images = parts.train.part(0, parts.experiment.record.test_examples)
        if recorder:
            recorder.trace.save(arm.trace_file)
        if averaged and not problem:
            epochs = len(arm.epochs)
            weights = checkpoints.weights_file(arm.of("averaged").path, epochs)
            checkpoints.save(weights, averaged.module, None, {"epoch": epochs})
        Outcome(
            rate=online.rate if online else rate,
            seconds=sum(metrics.seconds for metrics in arm.epochs),  # including those before an interruption
            problem=problem,
            epochs=len(arm.epochs),
            batch_size=parts.batch_size,
            steps=len(arm.epochs) * parts.steps_per_epoch,
            train_accuracy=None if problem else measure(parts, model, first_images).clean.value,
        ).save(arm.outcome_file)
        run.console.say(f"{arm.name}: {problem or arm.epochs[-1]}")

    ranks.from_first(conclude)


def fit(parts: Parts, model: nn.Module, optimizer: Optimizer, schedule: Schedule, **options: Any) -> None:
    """Train with the settings of the experiment; `options` of `excite.train` come on top or replace them.

    Global random numbers, such as dropout's, depend on the experiment's seed alone.
    """
    settings, seed = parts.experiment.training, parts.experiment.seed
    keys = ("epochs", "batch_size", "steps", "precision", "accumulate", "compile")
    usual: dict[str, Any] = {"data": parts.training_set, "augment": parts.augment, "seed": seed}
    usual |= {key: getattr(settings, key) for key in keys}
    with drawing_from(derive_seed(seed), device_of(model)):
        train(model, objective=parts.objective, optimizer=optimizer, schedule=schedule, **(usual | options))


def measure(parts: Parts, model: nn.Module, images: Split, *, attacked: bool = False) -> Evaluation:
    """Evaluate the model on `images`, with the experiment's first attack if `attacked`, without a second progress bar.

    Training is not affected: batch-norm statistics, modes and random generators are restored.
    """
    device, attacks = device_of(model), dict(list(parts.attacks.items())[:attacked])
    options: dict[str, Any] = {"batch_size": parts.experiment.attack_batch, "seed": parts.experiment.seed}
    x, y = images.floats().to(device), images.labels.to(device)
    with undisturbed(model, device):
        return evaluate(model, x, y, attacks, checks=False, on_progress=lambda _done, _total: None, **options)


def epoch_accuracies(parts: Parts, model: nn.Module) -> dict[str, float]:
    """Return the accuracy on the first test images, and under attack if the experiment records that."""
    record = parts.experiment.record
    accuracies = {"test_accuracy": measure(parts, model, parts.test.part(0, record.test_examples)).clean.value}
    if record.attacked_examples:
        under_attack = measure(parts, model, parts.test.part(0, record.attacked_examples), attacked=True)
        accuracies["robust_accuracy"] = under_attack.worst.value
        accuracies["attacked_clean_accuracy"] = under_attack.clean.value  # on the same images
    return accuracies


def keep_best(parts: Parts, arm: ArmFolder, model: nn.Module) -> dict[str, float]:
    """Every few epochs, save the weights if they are the best so far on held-out images under attack.

    Earlier accuracies are read from the recorded epochs, so a resumed training keeps the same weights.
    """
    finished = ArmFolder(arm.path).epochs
    epoch, last = len(finished) + 1, parts.experiment.training.epochs
    if parts.held_out is None or (epoch % parts.experiment.record.best_every and epoch != last):
        return {}
    accuracy = measure(parts, model, parts.held_out, attacked=True).worst.value
    if accuracy > max((metrics.extra.get(HELD_OUT_ACCURACY, -math.inf) for metrics in finished), default=-math.inf):
        facts = {"epoch": epoch, HELD_OUT_ACCURACY: accuracy}
        checkpoints.save(checkpoints.weights_file(arm.of("best").path, epoch), model, None, facts)
    return {HELD_OUT_ACCURACY: accuracy}
