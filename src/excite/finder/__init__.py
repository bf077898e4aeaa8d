"""Find L of any model in one call: train it briefly at several rates, then restore everything."""

import contextlib
import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_map_only

from excite.errors import InputError
from excite.finder.inputs import (
    LossFunction,
    NewOptimizer,
    batch_loss,
    borrowed,
    endless,
    initial_rate,
    make_fresh,
    momentum_sgd,
    new_optimizer,
    to_device,
)
from excite.lipschitz import LipschitzEstimate, find_edge
from excite.precision import Precision, autocast, check_precision, full_precision, rounding
from excite.quantities import OnProgress, check_kind, check_positive, check_whole
from excite.randomness import accelerator, derive_seed, device_of, seed_all, undisturbed
from excite.registry import check_choice
from excite.rescaling import peak_rate, shape_of
from excite.trace.recorder import held_by, trainable

__all__ = ["find_learning_rate"]

Step = Callable[[nn.Module, Any], Tensor]
Weights = Literal["fresh", "present"]

Validate = Callable[[nn.Module], float]

USUAL_BUDGET = 2000  # steps, if the length of a training is not told
LARGEST_BUDGET = 5000  # steps, if it is
PART_OF_TRAINING = 4  # the budget is at most a quarter of it
USUAL_START = 0.1
TIMED_STEPS = 5
MIN_STEPS = 20  # of a short run
STEPS_BEFORE = 10  # that measure the loss of present weights
UNMOVED = 1e-9  # times the first rate: the weights stay what they are
VALIDATED = (0.25, 0.5, 1.0, 2.0)  # multiples of 1/L


def find_learning_rate(
    model: nn.Module | Callable[[], nn.Module],
    loader: Iterable[Any],
    loss_fn: LossFunction = cross_entropy,
    optimizer: NewOptimizer | Optimizer | None = None,
    *,
    step: Step | None = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    weights: Weights = "fresh",
    epochs: int | None = None,
    total_steps: int | None = None,
    budget: int | None = None,
    seconds: float | None = None,
    steps: int | None = None,
    start: float | None = None,
    scheduler: LRScheduler | None = None,
    scheduler_steps: int | None = None,
    validate: Validate | None = None,
    seed: int = 0,
    precision: Precision = "float32",
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
) -> LipschitzEstimate:
    """Find L = 2/η*, where η* is the largest rate at which 95% of training runs converge (`excite.find_edge`).

    The model is trained briefly at several rates, each time from new initial weights and in a new data order. Then
    everything is restored bit for bit: weights, gradients, batch-norm statistics, modes (also of a `loss_fn` that is a
    module), your optimizer and its state, the loader's generator and all global random generators. L holds for this
    optimizer, batch size, loss and schedule.

    Args:
        model: a module, or a function that builds one. A module gets new weights from its layers' `reset_parameters`;
            of parameters that no layer draws, such as a class token, the entries are permuted, and the estimate says
            so. Pass a function if `__init__` initializes layers in its own way.
        loader: a DataLoader, or any collection of batches that can be iterated repeatedly. A batch is a tuple (the last
            entry is the target), a dict with "labels", or a tensor (its own target). The loader should shuffle. A list
            has a fixed order, and with `weights="present"` all short runs would be identical.
        loss_fn: (output, target) -> loss.
        optimizer: (parameters, rate) -> Optimizer, or an optimizer to copy with its options and parameter groups; the
            rate then is the largest of its groups. By default the scheduler's, or else SGD with momentum 0.9.
        step: (model, batch) -> loss, for other kinds of batches; replaces `loss_fn`.
        clip_grad_norm: clip the norm of the gradient to this value before each step, as your loop does.
        accumulate: number of batches whose mean loss makes one step, if your loop accumulates gradients.
        weights: start short runs from "fresh" or from "present" weights. Frozen layers keep theirs. A run from present
            weights converges only if its loss never rises above where it began, which ten batches measure first.
        epochs: number of epochs of a whole training, or
        total_steps: its number of steps.
        budget: total number of steps of all short runs. By default a quarter of a training, at most 5,000; or 2,000 if
            neither `epochs` nor `total_steps` is given.
        seconds: time limit of the search; the budget is reduced to what the speed of the first steps allows.
        steps: length of a short run.
        start: the first rate to try; by default the largest of your scheduler or optimizer, or else 0.1.
        scheduler: the scheduler of your optimizer, before its first step. Each short run goes through the whole
            schedule, scaled so that its largest value is the rate; momentum keeps its first value. A scheduler that
            `rescale_scheduler` cannot rescale is refused before the search. If None, rates are constant; if your
            schedule decays, L is then on the safe side.
        scheduler_steps: number of calls of `scheduler.step()` in a whole training; by default `total_steps`, or
            `epochs` if you give that.
        validate: (model) -> a score on held-out data, such as the accuracy. After the search one short run each at
            1/4, 1/2, 1 and 2 over L, of a quarter of the budget, tells which of them scores highest; see
            `estimate.best_multiple`.
        seed: seed of weights and data orders.
        precision: "bf16" runs the model, or your `step`, under autocast in bfloat16; `loss_fn` gets its output in
            float32. "tf32" rounds products on an NVIDIA GPU.
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
    check_choice("choice of weights", Weights, weights)
    if validate is not None:
        check_kind("validate", validate, "__call__", "a function (model) -> score")
    check_whole("seed", seed, least=0)
    counts = {"epochs": epochs, "total_steps": total_steps, "budget": budget, "accumulate": accumulate}
    for name, count in (counts | {"steps": steps, "scheduler_steps": scheduler_steps}).items():
        if count is not None:
            check_whole(name, count, least=1)
    for name, value in {"start": start, "clip_grad_norm": clip_grad_norm, "seconds": seconds}.items():
        if value is not None:
            check_positive(name, value)
    if not callable(loss_fn):
        raise InputError(
            f"loss_fn is a {type(loss_fn).__name__}; pass a function (output, target) -> loss, and then the optimizer."
        )
    whole = _steps_of_training(loader, accumulate, epochs, total_steps)
    if budget is None:
        budget = min(whole // PART_OF_TRAINING, LARGEST_BUDGET) if whole else USUAL_BUDGET
    if (scheduler is None) != (scheduler_steps is None) and not (scheduler and (total_steps or epochs)):
        raise InputError("Pass both scheduler and scheduler_steps, or the scheduler with epochs or total_steps.")
    schedule = shape_of(scheduler, scheduler_steps or total_steps or epochs or 1) if scheduler else [1.0]
    optimizer = optimizer or (scheduler.optimizer if scheduler else momentum_sgd)
    start = start or _customary_rate(scheduler, optimizer)
    began = time.perf_counter()
    with _new_models(model, loader, loss_fn, optimizer, weights) as (new_model, permuted):
        runs = _ShortRuns(
            new_model, loader, loss_fn, optimizer, step, clip_grad_norm, accumulate, seed, schedule, precision
        )
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
            options: dict[str, Any] = {"whole": whole, "steps": steps, "start": start, "optimizer": example}
            before = None
            if weights == "present" and budget >= 2 * MIN_STEPS:  # at a rate that changes nothing
                before = [*itertools.islice(losses_at(UNMOVED * start, 0, STEPS_BEFORE), STEPS_BEFORE)]
            edge = find_edge(losses_at, budget=budget - len(before or ()), before=before, **options)
        estimate = _add(edge, "", weights=weights, seed=seed, permuted=sorted(permuted))
        if permuted:
            names = ", ".join(sorted(permuted)[:3]) + (", …" if len(permuted) > 3 else "")
            estimate = _add(estimate, f"; no layer draws {names}, whose present entries were permuted instead")
        if validate is not None and estimate.reliable:
            scores = _scores(runs, edge, validate, max(budget // len(VALIDATED), MIN_STEPS))
            estimate = _add(estimate, "", validation=scores)
            tried = ", ".join(f"{run['score']:.4g} at {run['rate']:.3g}" for run in scores if run["score"] is not None)
            best = f"{estimate.best_multiple:g}/L did best: {tried}" if tried else "no run gave a finite score"
            estimate = _add(estimate, f"; on held-out data {best}")
    return _add(estimate, "", seconds=time.perf_counter() - began)


def _add(estimate: LipschitzEstimate, basis: str, **details: Any) -> LipschitzEstimate:
    return dataclasses.replace(estimate, basis=estimate.basis + basis, details=estimate.details | details)


def _customary_rate(scheduler: LRScheduler | None, optimizer: NewOptimizer | Optimizer) -> float:
    if scheduler is not None:
        return peak_rate(scheduler)
    return max(map(initial_rate, optimizer.param_groups)) if isinstance(optimizer, Optimizer) else USUAL_START


def _steps_of_training(
    loader: Iterable[Any], accumulate: int, epochs: int | None, total_steps: int | None
) -> int | None:
    if epochs is None:
        return total_steps
    if total_steps is not None:
        raise InputError("Pass epochs or total_steps, not both.")
    try:
        batches = len(loader)  # type: ignore[arg-type]
    except TypeError:
        raise InputError("The loader has no length; pass total_steps instead of epochs.") from None
    return epochs * math.ceil(batches / accumulate)


def _scores(runs: "_ShortRuns", estimate: LipschitzEstimate, validate: Validate, steps: int) -> list[dict[str, Any]]:
    """The score after one short run at each multiple of 1/L, from the same weights and in the same data order."""
    scores = []
    for multiple in VALIDATED:
        rate, model = estimate.learning_rate(multiple), runs.new_model_of(draw=0)
        *_, loss = itertools.islice(runs.descend(model, rate, 0, steps), steps)
        with undisturbed(model, device_of(model)), torch.no_grad():
            score = float(validate(model.eval())) if math.isfinite(loss) else math.nan
        scores.append({"multiple": multiple, "rate": rate, "score": score if math.isfinite(score) else None})
    return scores


@contextlib.contextmanager
def _new_models(
    model: nn.Module | Callable[[], nn.Module],
    loader: Iterable[Any],
    loss_fn: LossFunction,
    optimizer: NewOptimizer | Optimizer,
    weights: Weights,
) -> Iterator[tuple[Callable[[], nn.Module], set[str]]]:
    """Yield a function that returns the model as a short run starts from it; on exit, restore everything.

    The second item holds the names of parameters that were permuted because no layer draws them.
    """
    if isinstance(model, nn.Module):
        _check_model(model)
    elif weights == "present":
        raise InputError('weights="present" needs a model with weights: pass the model, not a function that builds it.')
    elif isinstance(optimizer, Optimizer):
        raise InputError(
            "If a function builds the model, a function must create the optimizer, too: pass "
            "optimizer=lambda params, lr: …, or pass the model itself. A scheduler can stay as it is."
        )
    permuted: set[str] = set()
    modules = nn.ModuleList([given for given in (model, loss_fn) if isinstance(given, nn.Module)])
    groups = optimizer.param_groups if isinstance(optimizer, Optimizer) else []
    trained = [parameter for group in groups for parameter in group["params"]]
    with borrowed(modules, loader, also=trained) as reset:

        def new_model() -> nn.Module:
            reset()
            if not isinstance(model, nn.Module):
                return _check_model(model())
            if weights == "fresh":
                permuted.update(make_fresh(model))
            return model

        yield new_model, permuted


def _check_model(model: object) -> nn.Module:
    """Refuse a distributed model: each process would judge rates by its own loss, and they would block each other."""
    if not isinstance(model, nn.Module):
        raise InputError(f"The function that builds the model returned a {type(model).__name__}, not an nn.Module.")
    trainable(model)
    if isinstance(model, DistributedDataParallel) and (processes := model.process_group.size()) > 1:
        raise InputError(
            f"The model is wrapped for {processes} processes. Call find_learning_rate in one of them, with the "
            f"unwrapped model and accumulate={processes}, and send the estimate to the others."
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
    precision: Precision

    def new_model_of(self, draw: int) -> nn.Module:
        seed_all(derive_seed(self.seed, draw), accelerator())
        return self.new_model()

    def losses_at(self, rate: float, draw: int, steps: int) -> Iterator[float]:
        return self.descend(self.new_model_of(draw), rate, draw, steps)

    def descend(self, model: nn.Module, rate: float, draw: int, steps: int) -> Iterator[float]:
        """Train and yield losses for as long as they are requested; the schedule is spread over `steps` steps."""
        if not model.training:  # in train mode, layers that the caller keeps in eval mode stay there
            model.train()
        device = device_of(model)
        check_precision(self.precision, device)
        optimizer = new_optimizer(self.optimizer, list(model.parameters()), rate)
        held_by(optimizer, list(model.parameters()))  # refuses the optimizer of another model
        batches = endless(self.loader, self.seed, draw)
        peaks = [float(group["lr"]) for group in optimizer.param_groups]
        for taken in itertools.count():
            factor = self.schedule[min(taken * len(self.schedule) // steps, len(self.schedule) - 1)]
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            accumulated = itertools.islice(batches, self.accumulate)
            yield self._step(model, [to_device(batch, device) for batch in accumulated], optimizer)

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

    def _step(self, model: nn.Module, batches: Sequence[Any], optimizer: Optimizer) -> float:
        """Take one step on the mean loss of the batches, and return it."""
        optimizer.zero_grad()
        mean, device = 0.0, device_of(model)
        loss_fn = partial(self._loss, device)
        for batch in batches:
            with rounding(self.precision, device):
                with autocast(self.precision, device):
                    loss = self.step(model, batch) if self.step else batch_loss(model, batch, loss_fn)
                loss = loss / len(batches)
                loss.backward()  # type: ignore[no-untyped-call]
            mean += loss.item()
        if self.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip_grad_norm)
        optimizer.step()
        return mean

    def _loss(self, device: torch.device, output: Any, target: Any) -> Tensor:
        """`loss_fn`, in float32 even if the model computes in bfloat16."""
        if self.precision != "bf16":
            return self.loss_fn(output, target)
        with torch.autocast(device.type, enabled=False):
            return self.loss_fn(tree_map_only(Tensor, full_precision, output), target)


def _progress(progress: bool | None, on_progress: OnProgress | None) -> AbstractContextManager[OnProgress]:
    """Return what is told about every step; a bar also shows how much time is left."""
    if on_progress is not None:
        return contextlib.nullcontext(on_progress)
    from excite.console import Console

    shown = sys.stderr.isatty() if progress is None else progress
    return Console(quiet=not shown).task("Finding the largest convergent rate")
