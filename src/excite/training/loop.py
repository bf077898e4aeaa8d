"""Train a model: one loop for every objective, which resumes bit-identically."""

import contextlib
import ctypes
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from excite.data.augment import Augmentation, none
from excite.data.batches import (
    Mixture,
    TrainingData,
    epoch_batches,
    images_at_once,
    resident,
    steps_per_epoch,
)
from excite.errors import InputError
from excite.lipschitz.online import OnlineRate
from excite.objectives import AWP, OBJECTIVES, SAM, Objective, frozen, standard_loss
from excite.precision import Precision, autocast, check_precision, rounding
from excite.quantities import MODULE, OnProgress, check_kind, check_whole
from excite.randomness import device_of, step_generators, undisturbed
from excite.schedules import Schedule, attach
from excite.trace import Recorder
from excite.trace.recorder import held_by
from excite.training import EpochMetrics, TrainingHistory
from excite.training.checkpoints import identity
from excite.training.distributed import ALONE, Loss, Ranks
from excite.training.resumable import ResumableRun, stop_requests

WATCHED = 128  # images, for objectives that have something to watch
STEPS_BETWEEN_CHECKS = 16  # reading a loss makes the host wait for the device
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # their numbers in glibc's malloc.h
LARGEST_KEPT = 1 << 30  # bytes; larger blocks are data sets rather than tensors of a training step


def descend(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    objective: Objective,
    optimizer: Optimizer,
    recorder: Recorder | None = None,
    *,
    averaged: AveragedModel | None = None,
    precision: Precision = "float32",
    at_once: int | None = None,
    generators: Iterable[torch.Generator | None] = repeat(None),
    ranks: Ranks = ALONE,
) -> Iterator[Tensor]:
    """Take the step θᵏ⁺¹ = θᵏ − ηᵏ ∇l(θᵏ) for each batch, and yield l(θᵏ).

    An adversarial objective draws random numbers from the `generators`, one for each step. If several `ranks` train
    together, `batches` are the shares of this process, and l(θᵏ) is the mean over processes. Batches larger than
    `at_once` are processed in parts. The recorder measures in float32, whatever the `precision` of the steps.
    """
    for (x, y), generator in zip(batches, generators, strict=False):
        optimizer.zero_grad()
        with rounding(precision, x.device):
            with autocast(precision, x.device):
                losses = losses_of_parts(objective, model, x, y, generator, at_once=at_once, ranks=ranks)
            values = []
            for loss in losses:
                with autocast(precision, x.device):
                    value = ranks.forward(loss)
                value.backward()  # type: ignore[no-untyped-call]
                values.append(value.detach())
        optimizer.step()
        if recorder:
            recorder.after_step(added(losses, x))
        if averaged:
            averaged.update_parameters(model)
        yield values[0] if len(values) == 1 else torch.stack(values).sum()


def losses_of_parts(
    objective: Objective,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: torch.Generator | None,
    *,
    at_once: int | None = None,
    ranks: Ranks = ALONE,
) -> list[Loss]:
    """Attack each part, if the objective is adversarial; return their losses, weighted by size so that they add up."""
    size = at_once or len(y)
    parts = list(zip(torch.split(x, size), torch.split(y, size), strict=True))

    def weighted(x: Tensor, y: Tensor, weight: float) -> Loss:
        loss = ranks.share(frozen(objective, model, x, y, generator), len(y))
        return loss if len(parts) == 1 else lambda: weight * loss()

    return [weighted(*part, len(part[1]) / len(y)) for part in parts]


def added(losses: Sequence[Loss], x: Tensor) -> Loss:
    """The loss of the batch `x`, differentiable one part after the other: each runs again in the backward pass."""
    if len(losses) == 1:
        return losses[0]

    def again(loss: Loss, _: Tensor) -> Tensor:  # the tensor names the device whose random state is repeated
        return loss()

    return lambda: torch.stack([checkpoint(again, loss, x[:0], use_reentrant=False) for loss in losses]).sum()


def train(
    model: nn.Module,
    data: TrainingData,
    objective: Objective,
    optimizer: Optimizer,
    schedule: Schedule,
    *,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    augment: Augmentation = none,
    steps: int | None = None,
    folder: Path | str | None = None,
    recorder: Recorder | None = None,
    online: OnlineRate | None = None,
    averaged: AveragedModel | None = None,
    precision: Precision = "float32",
    accumulate: int = 1,
    compile: bool = False,
    after_epoch: Callable[[nn.Module], dict[str, float]] | None = None,
    on_epoch: Callable[[EpochMetrics], None] | None = None,
    on_progress: OnProgress | None = None,
    ranks: Ranks = ALONE,
) -> TrainingHistory:
    """Train `model` in place.

    Batch order and augmentation depend on (seed, epoch) only, the random numbers of an adversarial objective on (seed,
    epoch, step). With a `folder`, an interrupted training resumes from its last checkpoint and ends bit-identical to an
    uninterrupted one. Resuming with another seed, batch size, objective, augmentation, optimizer, past rate, or fewer
    epochs is an error; more epochs are allowed. SIGINT and SIGTERM finish the step, save a checkpoint and raise
    InterruptedRunError.

    Args:
        model: takes images in [0, 1] and returns logits.
        data: a `Split` of a data set, or a `Mixture` of labelled and pseudo-labelled images.
        objective: for instance `objectives.Standard()` or `objectives.Trades(beta=6.0)`.
        optimizer: of the model's parameters; the schedule sets its rate.
        schedule: ηᵏ by epoch, for instance `schedules.rescale(baseline, estimate.learning_rate())`.
        epochs: number of epochs.
        batch_size: images per step, over all processes.
        seed: of batch order, augmentation and adversarial objectives.
        augment: one of `data.augment.AUGMENTATIONS`.
        steps: steps per epoch, for dry runs; by default all batches.
        folder: where to write metrics.jsonl and a checkpoint after each epoch.
        recorder: records every step; made for this model and optimizer.
        online: finds the rate during training and rolls back failed steps; pass `online.follow(schedule)` as schedule.
        averaged: an `AveragedModel` of the model, updated after each step; not together with `online`.
        precision: "bf16" runs the forward and backward passes of layers in bfloat16; weights stay in float32. "tf32"
            rounds convolutions and matrix products on an NVIDIA GPU.
        accumulate: number of parts of each batch. Their gradients are added, and only one part is in memory at a time.
            It must divide `batch_size`.
        compile: pass the training steps through torch.compile. Not for SAM, AWP or several processes.
        after_epoch: `after_epoch(model)` returns further numbers for the metrics of the epoch.
        on_epoch: called with the metrics of each epoch.
        on_progress: called with (done, total) after each step.
        ranks: processes that train together, each calling `train` with the same arguments; the first writes files.

    Returns:
        Loss, rate and time of every epoch, and the loss before the first step.

    Raises:
        DivergedError: if the loss is not finite or the training has collapsed; the last good checkpoint is kept.

    >>> import excite
    >>> split = excite.data.load("mnist-sample").train.subset(64, seed=0)
    >>> net = excite.models.create("lenet5", input_shape=(1, 28, 28))
    >>> sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> standard, constant = excite.objectives.Standard(), excite.schedules.constant(0.1)
    >>> len(train(net, split, standard, sgd, constant, epochs=2, batch_size=32).epochs)
    2
    """
    folder = None if folder is None else Path(folder)
    counts = {"epochs": epochs, "batch_size": batch_size, "accumulate": accumulate}
    for name, number in (counts | {"steps": 1 if steps is None else steps}).items():
        check_whole(name, number, least=1)
    check_whole("seed", seed, least=0)
    check_kind("model", model, "parameters", MODULE)
    check_precision(precision, device_of(model))
    keep_freed_memory()
    held_by(optimizer, list(model.parameters()))  # refuses the optimizer of another model
    length = steps_per_epoch(len(data), batch_size, steps)
    last_batch = data.order(batch_size=batch_size, seed=seed, epoch=0)(length - 1)
    at_once = images_at_once(batch_size, accumulate)
    _check_combination(accumulate, compile, data, objective, ranks)
    _check_fit(model, data, (sum(map(len, last_batch)) - 1) % at_once + 1)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ranks = ranks.training(model)
    if recorder and ranks.world > 1:
        recorder.join(ranks.average, keeps=ranks.first)
    if online and ranks.world > 1:
        online.keep()  # the weights of the first process, which all have now
    run = ResumableRun(
        folder=folder,
        model=model,
        optimizer=optimizer,
        scheduler=attach(optimizer, schedule),
        recorder=recorder,
        identity=identity(
            objective,
            optimizer,
            augment=augment,
            recorder=recorder is not None,
            online=online is not None,
            averaged=averaged is not None,
            precision=precision,
            accumulate=accumulate,
            compile=compile,
            seed=seed,
            batch_size=batch_size,
            steps_per_epoch=length,
            images=len(data),
        ),
        epochs=epochs,
        batch_size=batch_size,
        guessing=_cost_of_guessing(objective, data),
        online=online,
        averaged=averaged,
        ranks=ranks,
    )
    batches_of = partial(
        epoch_batches,
        resident(data, device_of(model)),
        batch_size=batch_size,
        seed=seed,
        augment=augment,
        device=device_of(model),
        memory_format=torch.channels_last,
        rank=ranks.rank,
        world=ranks.world,
    )
    losses_of = partial(losses_of_parts, objective, model, at_once=at_once, ranks=ranks)
    measure_again = partial(_measure_again, model, batches_of, losses_of, seed=seed, length=length, ranks=ranks)
    watch = getattr(objective, "watch", None)
    measures = [after_epoch, watch and (lambda model: watch(model, *data.probe(WATCHED, WATCHED)))]
    with stop_requests() as signals:
        while run.position.epoch < epochs:
            epoch, started, losses = run.position.epoch, time.perf_counter(), []
            model.train()
            steps_taken = descend(
                model,
                islice(batches_of(epoch=epoch, start=run.position.step), length - run.position.step),
                objective,
                optimizer,
                recorder,
                averaged=averaged,
                precision=precision,
                at_once=at_once,
                generators=step_generators(seed, epoch, start=run.position.step, rank=ranks.rank),
                ranks=ranks,
            )
            with _compiled(model, compile=compile):
                for loss in steps_taken:
                    losses.append(loss)
                    run.position.step += 1
                    if online:
                        run.take_back(online.after_step(ranks.average(loss)), losses)
                    elif run.position.step % STEPS_BETWEEN_CHECKS == 0:
                        run.check(ranks.average(loss).item())
                    if on_progress:
                        on_progress(epoch * length + run.position.step, epochs * length)
                    if ranks.agreed(*signals[:1]):
                        break
            run.gather(ranks.average(torch.stack(losses)).tolist() if losses else [], time.perf_counter() - started)
            if run.position.step == length:
                metrics = run.finish_epoch(measures, measure_again)
                if on_epoch:
                    on_epoch(metrics)
            run.save()
            if signal_number := ranks.agreed(*signals[:1]):
                raise run.interrupted(signal_number)
    return run.training


def _measure_again(
    model: nn.Module,
    batches_of: Callable[..., Iterator[tuple[Tensor, Tensor]]],
    losses_of: Callable[..., list[Loss]],
    n_batches: int,
    *,
    seed: int,
    length: int,
    ranks: Ranks,
) -> list[float]:
    """Return the losses of the first batches, with their random numbers and the current weights; restore the rest."""
    again = []
    with undisturbed(model, device_of(model)):
        model.train()
        for epoch, step in (divmod(number, length) for number in range(n_batches)):
            generator = next(step_generators(seed, epoch, start=step, rank=ranks.rank))
            losses = losses_of(*next(batches_of(epoch=epoch, start=step)), generator)
            again.append(torch.stack([loss().detach() for loss in losses]).sum())
    return ranks.average(torch.stack(again)).tolist()


@contextlib.contextmanager
def _compiled(model: nn.Module, *, compile: bool) -> Iterator[None]:
    """Inside, the model's forward pass between its hooks is compiled, at its first call."""
    if not compile:
        yield
        return
    model.forward = torch.compile(model.forward)
    try:
        yield
    except torch._dynamo.exc.TorchDynamoException as error:
        raise InputError(f"torch.compile cannot compile this model here. Leave out compile. ({error})") from error
    finally:
        del model.forward


def _cost_of_guessing(objective: Objective, data: TrainingData) -> float | None:
    """Return the loss of a network that finds all classes equally likely; None for objectives of other packages."""
    ours = objective is standard_loss or type(objective) in OBJECTIVES.values()
    return math.log(data.largest_label + 1) if ours else None


def _check_combination(accumulate: int, compile: bool, data: TrainingData, objective: Objective, ranks: Ranks) -> None:
    if compile and (ranks.world > 1 or isinstance(objective, SAM | AWP)):  # which trains at other weights at each step
        raise InputError(
            "Models are compiled for one process, and not for SAM or AWP, where torch.compile would compile again at "
            "every step. Leave out compile."
        )
    mixes = isinstance(data, Mixture) or getattr(objective, "needs_pseudo_labels", False)
    if accumulate > 1 and (mixes or ranks.world > 1):
        raise InputError(
            "Batches with pseudo-labelled images and the shares of several processes cannot be divided into parts. "
            "Leave out accumulate; several processes divide a batch, too."
        )


def _check_fit(model: nn.Module, data: TrainingData, smallest_batch: int) -> None:
    """Refuse data that do not fit the model, before anything is trained."""
    images = data.probe(2, 2)[0][:smallest_batch].to(device_of(model))
    try:
        with undisturbed(model, images.device), torch.no_grad():
            logits = model.train()(images)
    except (RuntimeError, ValueError) as error:  # a ValueError from batch-norm, if the batch has one image
        raise InputError(
            f"The model fails in train mode on images of shape {tuple(images.shape)}: {error}. Choose another model "
            "or batch size."
        ) from error
    largest = data.largest_label
    if logits.ndim != 2 or largest >= logits.shape[1]:
        raise InputError(
            f"The largest label is {largest}, but the model's output has shape {tuple(logits.shape)}. "
            f"Build the model with num_classes={largest + 1} or more."
        )


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the tensors of the next step; do nothing with another C library.

    By default glibc returns every block above 32 MB to the system, and getting it back at every step is slow. Results
    do not change. The process uses somewhat more memory: docs/training.md has the figures.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(M_TRIM_THRESHOLD, -1)
