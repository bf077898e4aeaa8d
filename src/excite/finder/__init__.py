"""Find L of any model in one call: train it briefly at several rates, then restore everything."""

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from excite.errors import InputError
from excite.finder.inputs import (
    LossFunction,
    NewOptimizer,
    batch_loss,
    borrowed,
    endless,
    make_fresh,
    momentum_sgd,
    new_optimizer,
    to_device,
)
from excite.lipschitz import LipschitzEstimate, find_edge
from excite.quantities import OnProgress, check_positive, check_whole
from excite.randomness import accelerator, derive_seed, device_of, seed_all
from excite.registry import check_choice
from excite.rescaling import shape_of
from excite.trace.recorder import held_by, trainable

__all__ = ["find_learning_rate"]

Step = Callable[[nn.Module, Any], Tensor]
Weights = Literal["fresh", "present"]

TIMED_STEPS = 5
MIN_STEPS = 20  # of a short run


def find_learning_rate(
    model: nn.Module | Callable[[], nn.Module],
    loader: Iterable[Any],
    loss_fn: LossFunction = cross_entropy,
    optimizer: NewOptimizer | Optimizer = momentum_sgd,
    *,
    step: Step | None = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    weights: Weights = "fresh",
    budget: int = 2000,
    seconds: float | None = None,
    steps: int | None = None,
    start: float = 0.1,
    scheduler: LRScheduler | None = None,
    scheduler_steps: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
) -> LipschitzEstimate:
    """Find L = 2/η*, where η* is the largest rate at which 95% of training runs converge (`excite.find_edge`).

    The model is trained briefly at several rates, each time from new initial weights and in a new data order. Then
    everything is restored bit for bit: weights, gradients, batch-norm statistics, modes (also of a `loss_fn` that is a
    module), your optimizer and its state, the loader's generator and all global random generators. L holds for this
    optimizer, batch size, loss and schedule.

    Args:
        model: a module, or a function that builds one. Pass a function if `__init__` initializes weights itself: a
            module gets new weights from its layers' `reset_parameters`.
        loader: a DataLoader, or any collection of batches that can be iterated repeatedly. A batch is a tuple (the last
            entry is the target), a dict with "labels", or a tensor (its own target). The loader should shuffle. A list
            has a fixed order, and with `weights="present"` all short runs would be identical.
        loss_fn: (output, target) -> loss.
        optimizer: (parameters, rate) -> Optimizer, or an optimizer to copy with its options and parameter groups; the
            rate then is the largest of its groups. By default SGD with momentum 0.9.
        step: (model, batch) -> loss, for other kinds of batches; replaces `loss_fn`.
        clip_grad_norm: clip the norm of the gradient to this value before each step, as your loop does.
        accumulate: number of batches whose mean loss makes one step, if your loop accumulates gradients.
        weights: start short runs from "fresh" or from "present" weights. Frozen layers keep theirs.
        budget: total number of steps of all short runs.
        seconds: time limit; the budget is reduced to what the speed of the first steps allows.
        steps: length of a short run.
        start: the first rate to try.
        scheduler: the scheduler of your optimizer, before its first step. Each short run goes through the whole
            schedule, scaled so that its largest value is the rate. If None, rates are constant; if your schedule
            decays, L is then on the safe side.
        scheduler_steps: number of calls of `scheduler.step()` in a whole training; required with `scheduler`.
        seed: seed of weights and data orders.
        progress: True shows a progress bar, False hides it; by default it is shown on a terminal.
        on_progress: called with (steps done, steps at most) instead of showing a bar.

    Returns:
        The estimate: `.learning_rate()` is 1/L, `.learning_rate(2)` is 2/L, `.plot()` shows which runs converged.

    >>> import torch
    >>> inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    >>> batches = [(x, x @ torch.ones(8, 1)) for x in inputs.split(32)]
    >>> sgd = lambda params, lr: torch.optim.SGD(params, lr)
    >>> estimate = find_learning_rate(torch.nn.Linear(8, 1), batches, torch.nn.functional.mse_loss, sgd, budget=600)
    >>> 0.05 < estimate.learning_rate() < 1
    True
    """
    check_choice("weights", Weights, weights)
    check_whole("seed", seed, least=0)
    counts = {"budget": budget, "accumulate": accumulate, "steps": steps, "scheduler_steps": scheduler_steps}
    for name, count in counts.items():
        if count is not None:
            check_whole(name, count, least=1)
    for name, value in {"start": start, "clip_grad_norm": clip_grad_norm, "seconds": seconds}.items():
        if value is not None:
            check_positive(name, value)
    if not callable(loss_fn):
        raise InputError(
            f"loss_fn is a {type(loss_fn).__name__}; pass a function (output, target) -> loss, and then the optimizer."
        )
    if (scheduler is None) != (scheduler_steps is None):
        raise InputError("Pass both scheduler and scheduler_steps, or neither.")
    schedule: Sequence[float] = (1.0,)
    if scheduler is not None and scheduler_steps is not None:
        schedule = shape_of(scheduler, scheduler_steps)
    began = time.perf_counter()
    with _new_models(model, loader, loss_fn, optimizer, weights) as new_model:
        runs = _ShortRuns(new_model, loader, loss_fn, optimizer, step, clip_grad_norm, accumulate, seed, schedule)
        if seconds is not None:
            budget = min(budget, runs.steps_within(seconds, start))
            steps = min(steps, budget) if steps else None
        with _progress(progress, on_progress) as show:
            counter = itertools.count(1)

            def losses_at(rate: float, draw: int, length: int) -> Iterator[float]:
                for loss in runs.losses_at(rate, draw, length):
                    show(min(next(counter), budget), budget)
                    yield loss

            example = new_optimizer(optimizer, list(new_model().parameters()), start)
            edge = find_edge(losses_at, budget=budget, steps=steps, start=start, optimizer=example)
    details = {"weights": weights, "seed": seed, "seconds": time.perf_counter() - began}
    return dataclasses.replace(edge, details=edge.details | details)


@contextlib.contextmanager
def _new_models(
    model: nn.Module | Callable[[], nn.Module],
    loader: Iterable[Any],
    loss_fn: LossFunction,
    optimizer: NewOptimizer | Optimizer,
    weights: Weights,
) -> Iterator[Callable[[], nn.Module]]:
    """Yield a function that returns the model as a short run starts from it; on exit, restore everything."""
    if isinstance(model, nn.Module):
        _check_model(model)
    elif weights == "present":
        raise InputError('weights="present" needs a model with weights: pass the model, not a function that builds it.')
    elif isinstance(optimizer, Optimizer):
        raise InputError(
            "If a function builds the model, a function must create the optimizer, too: pass "
            "optimizer=lambda params, lr: …, or pass the model itself."
        )
    modules = nn.ModuleList([given for given in (model, loss_fn) if isinstance(given, nn.Module)])
    groups = optimizer.param_groups if isinstance(optimizer, Optimizer) else []
    trained = [parameter for group in groups for parameter in group["params"]]
    with borrowed(modules, loader, also=trained) as reset:

        def new_model() -> nn.Module:
            reset()
            if not isinstance(model, nn.Module):
                return _check_model(model())
            if weights == "fresh":
                make_fresh(model)
            return model

        yield new_model


def _check_model(model: object) -> nn.Module:
    """Refuse a distributed model: each process would judge rates by its own loss, and they would block each other."""
    if not isinstance(model, nn.Module):
        raise InputError(f"The function that builds the model returned a {type(model).__name__}, not an nn.Module.")
    trainable(model)
    if isinstance(model, DistributedDataParallel) and (processes := model.process_group.size()) > 1:
        raise InputError(
            f"The model is wrapped in DistributedDataParallel with {processes} processes. Call find_learning_rate in "
            f"one process only, with the unwrapped model and accumulate={processes}, so that a step sees all images. "
            "Send the estimate to the other processes with torch.distributed.broadcast_object_list."
        )
    return model


@dataclasses.dataclass(frozen=True)
class _ShortRuns:
    """Short training runs; the number of a run decides its initial weights and its data order."""

    new_model: Callable[[], nn.Module]
    loader: Iterable[Any]
    loss_fn: LossFunction
    optimizer: NewOptimizer | Optimizer
    step: Step | None
    clip_grad_norm: float | None
    accumulate: int
    seed: int
    schedule: Sequence[float]  # relative to its largest rate

    def losses_at(self, rate: float, draw: int, steps: int) -> Iterator[float]:
        """Train and yield losses for as long as they are requested; the schedule is spread over `steps` steps."""
        seed_all(derive_seed(self.seed, draw), accelerator())
        model = self.new_model()
        if not model.training:  # in train mode, layers that the caller keeps in eval mode stay there
            model.train()
        device = device_of(model)
        optimizer = new_optimizer(self.optimizer, list(model.parameters()), rate)
        held_by(optimizer, list(model.parameters()))  # refuses the optimizer of another model
        batches = endless(self.loader, self.seed, draw)
        peaks = [float(group["lr"]) for group in optimizer.param_groups]
        for taken in itertools.count():
            factor = self.schedule[min(taken * len(self.schedule) // steps, len(self.schedule) - 1)]
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            accumulated = itertools.islice(batches, self.accumulate)
            yield self._descend(model, [to_device(batch, device) for batch in accumulated], optimizer)

    def steps_within(self, seconds: float, rate: float) -> int:
        """Number of steps that fit into this time, from the measured speed of a few."""
        losses = self.losses_at(rate, 0, MIN_STEPS)
        next(losses)  # the first step is slower
        began = time.perf_counter()
        per_second = len(list(itertools.islice(losses, TIMED_STEPS))) / (time.perf_counter() - began)
        if seconds * per_second < MIN_STEPS:
            raise InputError(
                f"seconds={seconds:g} allows {int(seconds * per_second)} steps, too few for one short run; pass "
                f"seconds={11 * MIN_STEPS / per_second:.2g} or more."
            )
        return int(seconds * per_second)

    def _descend(self, model: nn.Module, batches: Sequence[Any], optimizer: Optimizer) -> float:
        """Take one step on the mean loss of the batches, and return it."""
        optimizer.zero_grad()
        mean = 0.0
        for batch in batches:
            loss = self.step(model, batch) if self.step else batch_loss(model, batch, self.loss_fn)
            loss = loss / len(batches)
            loss.backward()  # type: ignore[no-untyped-call]
            mean += loss.item()
        if self.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip_grad_norm)
        optimizer.step()
        return mean


def _progress(progress: bool | None, on_progress: OnProgress | None) -> contextlib.AbstractContextManager[OnProgress]:
    if on_progress is not None:
        return contextlib.nullcontext(on_progress)
    if progress or (progress is None and sys.stderr.isatty()):
        from excite.console import Console

        return Console().task("Finding the largest convergent rate")
    return contextlib.nullcontext(lambda _done, _total: None)
