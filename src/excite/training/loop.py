"""Train a model: one loop for every objective, resumable to the bit."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, repeat
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from excite.data.augment import Augmentation, none
from excite.data.batches import TrainingData, epoch_batches, steps_per_epoch
from excite.data.dataset import Dataset
from excite.errors import InputError
from excite.lipschitz.online import OnlineRate
from excite.memory import keep_freed_memory
from excite.objectives import OBJECTIVES, Objective, frozen, standard_loss
from excite.quantities import MODULE, OnProgress, check_kind, check_whole
from excite.randomness import device_of, step_generators, undisturbed
from excite.registry import named_options
from excite.schedules import Schedule, attach
from excite.trace import Recorder
from excite.training.distributed import ALONE, Ranks
from excite.training.history import EpochMetrics, TrainingHistory
from excite.training.identity import identity
from excite.training.resumable import ResumableRun, stop_requests

STEPS_BETWEEN_LOOKS = 16  # reading a loss makes the host wait for the device; a NaN does not go away meanwhile


@named_options
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


@named_options
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
    online: OnlineRate | None = None,
    after_epoch: Callable[[nn.Module], dict[str, float]] | None = None,
    on_epoch: Callable[[EpochMetrics], None] | None = None,
    on_progress: OnProgress | None = None,
    ranks: Ranks = ALONE,
) -> TrainingHistory:
    """Train `model` in place.

    Batch order and augmentation depend on (seed, epoch) alone, what an attack of the objective draws on (seed, epoch,
    step). With a `folder`, the run writes metrics.jsonl and a checkpoint per epoch there, and a run that was stopped or
    killed continues from the last one, bit-identical to a run that was not. It must be the same run: another seed,
    batch size, objective, augmentation, optimizer or rate of an epoch that was begun is refused, and so are fewer
    epochs than were; more epochs go on, and the schedule may give those to come other rates. A `recorder` made for this
    model and optimizer watches every step and resumes with the run. `online` finds the rate on the way, rolls back the
    steps that broke, and resumes as well; pass `online.follow(schedule)` as the schedule.
    `steps` cuts every epoch short (for dry runs). `after_epoch(model)` measures further numbers for the epoch's line;
    `on_epoch` sees that line, `on_progress(done, total)` every step.

    `ranks` are the processes that train together, each calling `train` with the same arguments: `batch_size` counts
    what they do in one step together, the first one writes and calls `after_epoch`.

    Raises DivergedError on a non-finite loss or a collapsed run, the last good checkpoint kept. If the loss seems to be
    above its initial value, the objective is evaluated again on the first 16 batches, to tell a collapse from an easy
    first batch. SIGINT and SIGTERM finish the step, save, and raise InterruptedRunError.

    Args:
        model: images in [0, 1] in, logits out.
        data: a `Split` of a data set, or a `Mixture` of labelled and pseudo-labelled images.
        objective: for instance `objectives.Standard()` or `objectives.Trades(beta=6.0)`.
        optimizer: of the model's parameters; its rate is the schedule's.
        schedule: ηᵏ by epoch, for instance `schedules.rescale(baseline, estimate.learning_rate())`.
        epochs: how many.
        batch_size: images per step.

    Returns:
        Every epoch's loss, rate and seconds, and the loss before the first step.

    >>> import excite
    >>> split = excite.data.load("mnist-sample").train.subset(64, seed=0)
    >>> net = excite.models.create("lenet5", input_shape=(1, 28, 28))
    >>> sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> standard, constant = excite.objectives.Standard(), excite.schedules.constant(0.1)
    >>> len(train(net, split, standard, sgd, constant, epochs=2, batch_size=32).epochs)
    2
    """
    for name, number in (("epochs", epochs), ("batch_size", batch_size), ("steps", 1 if steps is None else steps)):
        check_whole(name, number, least=1)
    check_whole("seed", seed, least=0)
    check_kind("model", model, "parameters", MODULE)
    keep_freed_memory()
    _check_kinds(data, objective, optimizer)
    _check_optimizer(model, optimizer)
    length = steps_per_epoch(data.epoch_images, batch_size, steps)
    last_batch = data.order(batch_size=batch_size, seed=seed, epoch=0)(length - 1)
    _check_fit(model, data, sum(map(len, last_batch)))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ranks = ranks.training(model)
    if recorder and ranks.world > 1:
        recorder.join(ranks.average, keeps=ranks.first)
    if online and ranks.world > 1:
        online.keep()  # the first process's weights, which all have now
    scheduler = attach(optimizer, schedule)
    this = identity(
        objective,
        optimizer,
        augment=augment,
        recorder=recorder is not None,
        online=online is not None,
        seed=int(seed),
        batch_size=int(batch_size),
        steps_per_epoch=length,
        images=int(data.epoch_images),
    )
    run = ResumableRun(
        folder,
        model,
        optimizer,
        scheduler,
        recorder,
        identity=this,
        epochs=epochs,
        batch_size=batch_size,
        guessing=_cost_of_guessing(objective, data),
        online=online,
        ranks=ranks,
    )

    batches_of = partial(
        epoch_batches,
        data,
        batch_size=batch_size,
        seed=seed,
        augment=augment,
        device=next(model.parameters()).device,
        memory_format=torch.channels_last,
        rank=ranks.rank,
        world=ranks.world,
    )
    measure_again = partial(_measure_again, model, batches_of, objective, length=length, seed=seed, ranks=ranks)

    with stop_requests() as stop:
        while run.position.epoch < epochs:
            epoch, started, losses = run.position.epoch, time.perf_counter(), []
            model.train()
            batches = batches_of(epoch=epoch, start=run.position.step)
            rest = islice(batches, length - run.position.step)
            generators = step_generators(seed, epoch, start=run.position.step, rank=ranks.rank)
            for loss in descend(model, rest, objective, optimizer, recorder, generators=generators, ranks=ranks):
                losses.append(loss)
                run.position.step += 1
                if online:
                    run.take_back(online.after_step(ranks.average(loss)), losses)
                elif run.position.step % STEPS_BETWEEN_LOOKS == 0:
                    run.check(ranks.average(loss).item())
                if on_progress:
                    on_progress(epoch * length + run.position.step, epochs * length)
                if ranks.agreed(stop.signal_number):
                    break
            run.gather(ranks.average(torch.stack(losses)).tolist() if losses else [], time.perf_counter() - started)
            if run.position.step == length:
                metrics = run.finish_epoch(after_epoch, measure_again=measure_again, last=epoch + 1 == epochs)
                if on_epoch:
                    on_epoch(metrics)
            run.save()
            if signal_number := ranks.agreed(stop.signal_number):
                raise run.interrupted(signal_number, over=run.position.epoch == epochs)
    return run.training


def _measure_again(
    model: nn.Module,
    batches_of: Callable[..., Iterator[tuple[Tensor, Tensor]]],
    objective: Objective,
    n_batches: int,
    *,
    length: int,
    seed: int,
    ranks: Ranks,
) -> list[float]:
    """Losses of the first batches of a training in epochs of this length, with the current weights.

    An objective that attacks draws what it drew at these steps. The training goes on as if nothing had been measured.
    """
    losses: list[Tensor] = []
    with undisturbed(model, device_of(model)):
        model.train()
        for number in range(n_batches):
            epoch, step = divmod(number, length)
            x, y = next(batches_of(epoch=epoch, start=step))
            generator = next(step_generators(seed, epoch, start=step, rank=ranks.rank))
            losses.append(ranks.share(frozen(objective, model, x, y, generator), len(y))().detach())
    averages: list[float] = ranks.average(torch.stack(losses)).tolist()
    return averages


def _cost_of_guessing(objective: Objective, data: TrainingData) -> float | None:
    """What a network pays that finds all classes alike; of an objective that is not ours nobody knows it."""
    ours = objective is standard_loss or type(objective) in OBJECTIVES.values()
    return math.log(data.largest_label + 1) if ours else None


def _check_kinds(data: object, objective: object, optimizer: object) -> None:
    """Refuse what is easily mixed up."""
    if isinstance(data, Dataset):
        raise InputError(f"{data.name} is a data set of two splits; train on one of them: pass dataset.train.")
    if not hasattr(data, "order"):
        raise InputError(
            f"Training data are a Split or a Mixture, not {type(data).__name__}: make one of uint8 images and labels, "
            "excite.data.Split(images, labels)."
        )
    if not callable(objective):
        raise InputError(
            f"An objective is a function (model, x, y) -> loss, not {objective!r}: pass "
            "excite.objectives.standard_loss, or one of excite.objectives.OBJECTIVES made, such as Trades()."
        )
    if isinstance(optimizer, LBFGS):
        raise InputError("LBFGS evaluates the loss several times a step, which this loop does not; use SGD or Adam.")


def _check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that would train something else."""
    own = {id(parameter) for parameter in model.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in own for parameter in held)
    if foreign:
        raise InputError(
            f"{foreign} of the {len(held)} tensors that the optimizer moves are not this model's, as after copying or "
            "rebuilding the model. Make the optimizer anew: torch.optim.SGD(model.parameters(), lr=…)."
        )


def _check_fit(model: nn.Module, data: TrainingData, smallest_batch: int) -> None:
    """Refuse data that the model cannot take, before anything is trained."""
    images = data.probe(2, 2)[0][:1].to(device_of(model))
    try:
        with undisturbed(model, images.device), torch.no_grad():
            logits = model.eval()(images)
    except RuntimeError as error:
        shape = "×".join(map(str, images.shape[1:]))
        raise InputError(f"The model cannot take images of shape {shape}: {error}") from error
    if not isinstance(logits, Tensor):
        raise InputError(
            f"The model gives a {type(logits).__name__}, not a tensor of logits. Wrap it in a module whose forward "
            "returns the logits alone, such as model(x)[0]."
        )
    largest = data.largest_label
    if logits.ndim != 2 or largest >= logits.shape[1]:
        raise InputError(
            f"The labels reach {largest}, the model's output has shape {tuple(logits.shape)}. "
            f"Build the model with num_classes={largest + 1} or more."
        )
    if smallest_batch == 1:
        try:
            with undisturbed(model, images.device), torch.no_grad():
                model.train()(images)
        except ValueError as error:  # batch-norm's
            raise InputError(
                f"A batch of an epoch holds one image, of which batch-norm has no statistics ({error}). "
                "Choose a batch size that leaves more."
            ) from error
