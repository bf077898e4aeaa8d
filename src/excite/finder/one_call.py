"""L, and with it the learning rates 1/L and 2/L, from short trainings of anybody's model on anybody's data."""

import contextlib
import dataclasses
import inspect
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
from excite.finder.batch_loss import LossFunction, batch_loss, to_device
from excite.finder.borrowed import borrowed, endless, make_fresh
from excite.finder.same_optimizer import NewOptimizer, momentum_sgd, new_optimizer
from excite.lipschitz import LipschitzEstimate, find_edge
from excite.quantities import OnProgress, check_positive, check_whole
from excite.randomness import accelerator, derive_seed, device_of, seed_all
from excite.registry import named_options
from excite.rescaling import shape_of
from excite.trace.misuse import check_optimizer, trainable

Step = Callable[[nn.Module, Any], Tensor]

TIMED_STEPS = 5
FEWEST_STEPS = 20


@named_options
def find_learning_rate(
    model: nn.Module | Callable[[], nn.Module],
    loader: Iterable[Any],
    loss_fn: LossFunction = cross_entropy,
    optimizer: NewOptimizer | Optimizer = momentum_sgd,
    *,
    step: Step | None = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    weights: Literal["fresh", "present"] = "fresh",
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
    """Find L = 2/η*, where η* is the largest rate at which 95% of trainings converge (`excite.find_edge`).

    It trains the model briefly at several rates, each time from new initial weights and in a new data order. Afterwards
    everything is restored bit for bit: weights, gradients, batch-norm statistics, modes (of the model, and of a
    `loss_fn` that is a module), your optimizer and its state, the loader's generator and all global random generators.
    L holds for this optimizer, batch size, loss and schedule.

    Args:
        model: a module, or a function that builds one. The function is the better choice where `__init__` draws the
            weights in a way of its own: a module's fresh weights come from its layers' `reset_parameters`.
        loader: a DataLoader, or any collection of batches that can be gone through again and again. A batch may be a
            tuple (the last is the target), a dict with "labels", or a tensor (its own target). Let it shuffle: a list
            has one order, and with `weights="present"` every short training is then the same one, so that the interval
            knows nothing of luck.
        loss_fn: (output, target) -> loss.
        optimizer: (parameters, rate) -> Optimizer, or an optimizer whose kind, options and parameter groups to use; the
            rate then is that of the group with the largest. By default SGD with momentum 0.9.
        step: (model, batch) -> loss, for batches of any other kind; `loss_fn` is then not used.
        clip_grad_norm: clip the gradient to this length before each step, as your loop does.
        accumulate: of so many batches the mean loss makes one step, as where your loop adds up their gradients.
        weights: where the short trainings begin, "fresh" or "present". Frozen layers keep theirs.
        budget: how many steps all short trainings together may take.
        seconds: how long they may take: the budget is cut to what the first steps' speed allows.
        steps: the length of one short training.
        start: the first rate to try.
        scheduler: your scheduler of this optimizer, before its first step. Each short training goes through its whole
            schedule, with the rate as its largest value. Without one, rates are constant, and L is that of a training
            at a constant rate: on the safe side, if yours decays.
        scheduler_steps: how often a whole training calls `scheduler.step()`.
        seed: of weights and data orders.
        progress: True shows a bar, False none; by default on a terminal.
        on_progress: told (steps done, steps at most), instead of a bar.

    Returns:
        The estimate: `.learning_rate()` is 1/L, `.learning_rate(2)` is 2/L, `.plot()` shows where training converged.

    >>> import torch
    >>> inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    >>> batches = [(x, x @ torch.ones(8, 1)) for x in inputs.split(32)]
    >>> sgd = lambda params, lr: torch.optim.SGD(params, lr)
    >>> estimate = find_learning_rate(torch.nn.Linear(8, 1), batches, torch.nn.functional.mse_loss, sgd, budget=600)
    >>> 0.05 < estimate.learning_rate() < 1
    True
    """
    if weights not in ("fresh", "present"):
        raise InputError(f'weights="{weights}" is neither "fresh" nor "present".')
    check_whole("seed", seed, least=0)
    check_whole("budget", budget, least=1)
    check_whole("accumulate", accumulate, least=1)
    if steps is not None:
        check_whole("steps", steps, least=1)
    check_positive("start", start)
    for name, limit in {"clip_grad_norm": clip_grad_norm, "seconds": seconds}.items():
        if limit is not None:
            check_positive(name, limit)
    if not callable(loss_fn):
        raise InputError(
            f"loss_fn is a {type(loss_fn).__name__}; pass a function (output, target) -> loss, then the optimizer."
        )
    if (scheduler is None) != (scheduler_steps is None):
        raise InputError("scheduler and scheduler_steps belong together: pass both, or neither.")
    shape: Sequence[float] = (1.0,)
    if scheduler is not None and scheduler_steps is not None:
        check_whole("scheduler_steps", scheduler_steps, least=1)
        shape = shape_of(scheduler, scheduler_steps)
    if progress and on_progress is not None:
        raise InputError("progress=True shows a bar, on_progress is told instead of one: pass one of them.")
    began = time.perf_counter()
    with _beginnings(model, loader, loss_fn, optimizer, weights) as beginning:
        trainings = _Trainings(beginning, loader, loss_fn, optimizer, step, clip_grad_norm, accumulate, seed, shape)
        if seconds is not None:
            budget = min(budget, trainings.steps_within(seconds, start))
            steps = min(steps, budget) if steps else None
        with _shown(progress, on_progress) as show:
            counter = itertools.count(1)

            def losses_at(rate: float, draw: int, length: int) -> Iterator[float]:
                for loss in trainings.losses_at(rate, draw, length):
                    show(min(next(counter), budget), budget)
                    yield loss

            edge = find_edge(
                losses_at, budget=budget, steps=steps, start=start, optimizer=trainings.optimizer_at(start)
            )
    found = {"weights": weights, "seed": seed, "seconds": time.perf_counter() - began}
    return dataclasses.replace(edge, details=edge.details | found)


@contextlib.contextmanager
def _beginnings(
    model: nn.Module | Callable[[], nn.Module],
    loader: Iterable[Any],
    loss_fn: LossFunction,
    optimizer: NewOptimizer | Optimizer,
    weights: str,
) -> Iterator[Callable[[], nn.Module]]:
    """Yield a function that gives the model as a short training finds it; on leaving, all is as it was."""
    if isinstance(model, nn.Module):
        trainable(model)
        _check_alone(model)
    elif weights == "present":
        raise InputError('weights="present" needs a model that has some: pass the model, not a function.')
    elif isinstance(optimizer, Optimizer):
        raise InputError(
            "A model that is built anew each time needs an optimizer that is, too: pass "
            "optimizer=lambda params, lr: …, or the model itself."
        )
    lent = nn.ModuleList([each for each in (model, loss_fn) if isinstance(each, nn.Module)])
    with borrowed(lent, loader, also=_parameters(optimizer)) as begin_again:

        def begin() -> nn.Module:
            begin_again()
            if not isinstance(model, nn.Module):
                return _built(model)
            if weights == "fresh":
                make_fresh(model)
            return model

        yield begin


def _check_alone(model: nn.Module) -> None:
    """Refuse a model whose processes would judge rates by their own losses, try others, and wait for each other."""
    if isinstance(model, DistributedDataParallel) and (processes := model.process_group.size()) > 1:
        raise InputError(
            f"The model is in DistributedDataParallel with {processes} processes, each of which would try rates of its "
            f"own. Call it in one of them, with the model as it is before it is wrapped and accumulate={processes}, so "
            "that a step sees as many images, and hand the estimate to the others: "
            "torch.distributed.broadcast_object_list."
        )


def _parameters(optimizer: NewOptimizer | Optimizer) -> list[nn.Parameter]:
    groups = optimizer.param_groups if isinstance(optimizer, Optimizer) else []
    return [parameter for group in groups for parameter in group["params"]]


def _built(build: Callable[[], nn.Module]) -> nn.Module:
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise InputError(
            f"The function that builds the model is called without arguments ({error}): pass lambda: Net(…)."
        ) from error
    except ValueError:
        pass  # nobody knows what it takes
    model = build()
    if not isinstance(model, nn.Module):
        raise InputError(f"The function built a {type(model).__name__}, no model: let it return a torch.nn.Module.")
    trainable(model)
    return model


@dataclasses.dataclass(frozen=True)
class _Trainings:
    """Trainings, each from weights and in a data order that its number decides."""

    beginning: Callable[[], nn.Module]
    loader: Iterable[Any]
    loss_fn: LossFunction
    optimizer: NewOptimizer | Optimizer
    step: Step | None
    clip_grad_norm: float | None
    accumulate: int
    seed: int
    shape: Sequence[float]  # of the schedule, relative to its largest rate

    def losses_at(self, rate: float, draw: int, steps: int) -> Iterator[float]:
        """Train for as long as losses are asked for; the schedule takes `steps` steps."""
        seed_all(derive_seed(self.seed, draw), accelerator())
        model = self.beginning()
        if not model.training:  # else layers that are in eval mode are kept there by the loop
            model.train()
        device = device_of(model)
        optimizer = new_optimizer(self.optimizer, list(model.parameters()), rate)
        check_optimizer(optimizer, list(model.parameters()), watches_steps=False)
        batches = endless(self.loader, self.seed, draw)
        peaks = [float(group["lr"]) for group in optimizer.param_groups]
        for taken in itertools.count():
            factor = self.shape[min(taken * len(self.shape) // steps, len(self.shape) - 1)]
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            several = itertools.islice(batches, self.accumulate)
            yield self._descend(model, [to_device(batch, device) for batch in several], optimizer)

    def optimizer_at(self, rate: float) -> Optimizer:
        return new_optimizer(self.optimizer, list(self.beginning().parameters()), rate)

    def steps_within(self, seconds: float, rate: float) -> int:
        """How many steps the time pays for, by the speed of a few."""
        losses = self.losses_at(rate, 0, FEWEST_STEPS)
        next(losses)  # the first one is slower
        began = time.perf_counter()
        each = len(list(itertools.islice(losses, TIMED_STEPS))) / (time.perf_counter() - began)
        if seconds * each < FEWEST_STEPS:
            raise InputError(
                f"In {seconds:g} s there is time for {int(seconds * each)} steps, too few for one short training; "
                f"allow {11 * FEWEST_STEPS / each:.2g} s or more."
            )
        return int(seconds * each)

    def _descend(self, model: nn.Module, batches: Sequence[Any], optimizer: Optimizer) -> float:
        def closure() -> float:
            optimizer.zero_grad()
            mean = 0.0
            for batch in batches:
                loss = self._loss(model, batch) / len(batches)
                loss.backward()  # type: ignore[no-untyped-call]
                mean += loss.item()
            if self.clip_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.clip_grad_norm)
            return mean

        if _needs_closure(optimizer):
            return float(optimizer.step(closure))
        mean = closure()
        optimizer.step()
        return mean

    def _loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss = self.step(model, batch) if self.step else batch_loss(model, batch, self.loss_fn)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
            raise InputError(f"The loss of a batch must be one number; this has {what}. Take its mean.")
        return loss


def _needs_closure(optimizer: Optimizer) -> bool:
    """Whether its step evaluates the loss itself, as that of LBFGS does; others may not even take a closure."""
    return any(each.default is each.empty for each in inspect.signature(optimizer.step).parameters.values())


def _shown(progress: bool | None, on_progress: OnProgress | None) -> contextlib.AbstractContextManager[OnProgress]:
    if on_progress is not None:
        return contextlib.nullcontext(on_progress)
    if progress or (progress is None and sys.stderr.isatty()):
        from excite.console import Console

        return Console().task("Finding the largest convergent rate")
    return contextlib.nullcontext(lambda _done, _total: None)
