"""Train a model: one loop for every objective, resumable to the bit."""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from excite.data.augment import Augmentation, none
from excite.data.batches import TrainingData, epoch_batches, steps_per_epoch
from excite.errors import InputError
from excite.objectives import Objective, frozen
from excite.randomness import step_generators
from excite.schedules import Schedule, attach
from excite.trace import Recorder
from excite.training.distributed import ALONE, Ranks
from excite.training.history import EpochMetrics, TrainingHistory
from excite.training.interrupts import stop_requests
from excite.training.resumable import ResumableRun

STEPS_BETWEEN_LOOKS = 16  # reading a loss makes the host wait for the device; a NaN does not go away meanwhile


def descend(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    objective: Objective,
    optimizer: Optimizer,
    recorder: Recorder | None = None,
    *,
    generators: Iterable[torch.Generator | None] = repeat(None),
    ranks: Ranks = ALONE,
) -> Iterator[Tensor]:
    """θᵏ⁺¹ = θᵏ − ηᵏ ∇l(θᵏ), batch by batch; yields l(θᵏ) after each step.

    An objective that attacks draws from the `generators`, one for each step.
    Where several `ranks` train together, `batches` are this one's shares, and the mean of what they yield is l(θᵏ).
    """
    for (x, y), generator in zip(batches, generators, strict=False):
        optimizer.zero_grad()
        loss = ranks.share(frozen(objective, model, x, y, generator), len(y))
        value = ranks.forward(loss)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if recorder:
            recorder.after_step(loss)
        yield value.detach()


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
    folder: Path | None = None,
    recorder: Recorder | None = None,
    after_epoch: Callable[[nn.Module], dict[str, float]] | None = None,
    on_epoch: Callable[[EpochMetrics], None] | None = None,
    on_step: Callable[[int, int], None] | None = None,
    ranks: Ranks = ALONE,
) -> TrainingHistory:
    """Train `model` in place.

    Batch order and augmentation depend on (seed, epoch) alone, what an attack of the objective draws on (seed, epoch,
    step). With a `folder`, the run writes metrics.jsonl and a
    checkpoint per epoch there, and a run that was stopped or killed continues from the last one, bit-identical to a run
    that was not. A `recorder` made for this model and optimizer watches every step and resumes with the run. `steps`
    cuts every epoch short (for dry runs). `after_epoch(model)` measures further numbers for the epoch's line;
    `on_epoch` sees that line, `on_step(done, total)` every step.

    `ranks` are the processes that train together, each calling `train` with the same arguments: `batch_size` counts
    what they do in one step together, the first one writes and calls `after_epoch`.

    Raises DivergedError on a non-finite loss or a collapsed run, the last good checkpoint kept. SIGINT and SIGTERM
    finish the step, save, and raise InterruptedRunError.
    """
    if min(epochs, batch_size, steps or 1) < 1:
        raise InputError(f"epochs, batch_size and steps must be at least 1, not {epochs}, {batch_size}, {steps}.")
    length = steps_per_epoch(data.epoch_images, batch_size, steps)
    _check_fit(model, data)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ranks = ranks.training(model)
    if recorder and ranks.world > 1:
        recorder.join(ranks.average, keeps=ranks.first)
    run = ResumableRun(folder, model, optimizer, attach(optimizer, schedule), recorder, ranks=ranks)

    with stop_requests() as stop:
        while run.position.epoch < epochs:
            epoch, started, losses = run.position.epoch, time.perf_counter(), []
            model.train()
            batches = epoch_batches(
                data,
                batch_size=batch_size,
                seed=seed,
                epoch=epoch,
                augment=augment,
                start=run.position.step,
                device=next(model.parameters()).device,
                memory_format=torch.channels_last,
                rank=ranks.rank,
                world=ranks.world,
            )
            rest = islice(batches, length - run.position.step)
            generators = step_generators(seed, epoch, start=run.position.step, rank=ranks.rank)
            for loss in descend(model, rest, objective, optimizer, recorder, generators=generators, ranks=ranks):
                losses.append(loss)
                run.position.step += 1
                if run.position.step % STEPS_BETWEEN_LOOKS == 0:
                    run.check(ranks.average(loss).item())
                if on_step:
                    on_step(epoch * length + run.position.step, epochs * length)
                if ranks.agreed(stop.signal_number):
                    break
            run.gather(ranks.average(torch.stack(losses)).tolist(), time.perf_counter() - started)
            if run.position.step == length:
                metrics = run.finish_epoch(after_epoch)
                if on_epoch:
                    on_epoch(metrics)
            run.save()
            signal_number = ranks.agreed(stop.signal_number)
            if signal_number and run.position.epoch < epochs:
                raise run.interrupted(signal_number)
    return run.training


def _check_fit(model: nn.Module, data: TrainingData) -> None:
    """Refuse data that the model cannot take, before anything is trained."""
    images, _ = data.probe(2, 2)
    device = next(model.parameters()).device
    model.eval()
    try:
        with torch.no_grad():
            logits = model(images[:1].to(device))
    except RuntimeError as error:
        shape = "×".join(map(str, images.shape[1:]))
        raise InputError(f"The model cannot take images of shape {shape}: {error}") from error
    largest = data.largest_label
    if logits.ndim != 2 or largest >= logits.shape[1]:
        raise InputError(
            f"The labels reach {largest}, the model's output has shape {tuple(logits.shape)}. "
            f"Build the model with num_classes={largest + 1} or more."
        )
