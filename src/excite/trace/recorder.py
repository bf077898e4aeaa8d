"""Watch any training loop and keep what the estimators of L need; the run goes on as if nobody had looked."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from excite.errors import InputError
from excite.randomness import random_state, set_random_state, undisturbed
from excite.trace.hessian import largest_curvature
from excite.trace.moments import Moments
from excite.trace.optimizers import caveat, check_optimizer
from excite.trace.probe import Loss, Objective, Probe
from excite.trace.trace import Trace
from excite.trace.used_gradient import BackwardPasses, objection, standing_at
from excite.trace.vectors import SKETCH_ENTRIES, CountSketch, Projection, Whole, dense, project, project_gradient

Gradient = Literal["epoch_mean", "probe", "input"]
Storage = Literal["auto", "exact", "sketch"]

EXACT_LIMIT = 2_000_000  # parameters; larger models are sketched under storage="auto"

logger = logging.getLogger(__name__)


class Recorder:
    """Fills a Trace from any loop; leaves weights, gradients, optimizer, buffers, modes and random state alone.

    ```
    recorder = Recorder(model, optimizer)
    for epoch in range(epochs):
        for x, y in loader:
            def closure(): return loss_fn(model(x), y)
            optimizer.zero_grad(); closure().backward(); optimizer.step()
            recorder.after_step(closure)
        recorder.record()
    recorder.trace
    ```

    Args:
        model: its parameters that require gradients now are the ones observed.
        optimizer: needed for epoch means, local slopes and learning rates.
        probe: (x, y), fixed examples for `gradient="probe"`, `"input"` and for curvatures.
        loss: (logits, targets) -> loss on the probe; `objective`, (model, x, y) -> loss, replaces it.
        gradient: what a moment's gradient is: "epoch_mean", the mean of the gradients that the epoch's steps used;
            "probe", the gradient on the probe; "input", the released code's gradient with respect to the probe's
            pixels, averaged over the batch once more than the loss already does.
        slopes_per_epoch: local slopes per epoch, at steps drawn from (seed, epoch). One costs a forward and a
            backward pass. Without `steps_per_epoch` the first epoch samples its steps 1, 2, 4, 8, ….
        storage: "exact" vectors, a "sketch" of them, or "auto", exact up to 2 million parameters.
        batch_size: of training; probes are evaluated in batches of this size.
        curvature_every: measure the curvature on the probe at every so many-th moment; 0: never.
        folder: keeps exact vectors in files there, so that checkpoints stay small.

    >>> net = nn.Linear(2, 2)
    >>> sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> recorder = Recorder(net, sgd)
    >>> for _ in range(3):
    ...     cross_entropy(net(torch.eye(2)), torch.tensor([0, 1])).backward()
    ...     sgd.step()
    ...     recorder.record()
    >>> len(recorder.trace)
    3
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        probe: tuple[Tensor, Tensor] | None = None,
        loss: Loss = cross_entropy,
        objective: Objective | None = None,
        gradient: Gradient = "epoch_mean",
        slopes_per_epoch: int = 8,
        steps_per_epoch: int | None = None,
        storage: Storage = "auto",
        sketch_entries: int = SKETCH_ENTRIES,
        batch_size: int = 128,
        curvature_every: int = 0,
        curvature_iterations: int = 12,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        self._model = model
        self._parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._check(optimizer, gradient, storage, slopes_per_epoch)
        self._device = self._parameters[0].device
        self._probe: Probe | None = None
        if probe is not None:
            self._probe = Probe(*probe, batch_size=batch_size, loss=loss, objective=objective, seed=seed)
        if gradient != "epoch_mean" or curvature_every:
            self._needed_probe()
        self._gradient = gradient
        self._slopes_per_epoch = slopes_per_epoch if optimizer is not None else 0
        self._curvature_every = curvature_every
        self._curvature_iterations = curvature_iterations
        self._seed = seed
        self._projection = _projection(self._parameters, storage, sketch_entries, seed)
        initial = project(self._projection, self._parameters)
        self._parameter_moments = Moments("parameters", initial, folder=folder)
        self._gradient_moments = Moments("gradients", None, folder=folder)
        self._gradient_sum = self._projection.zeros()
        self._steps_summed = 0
        self._step = 0
        self._step_of_epoch = 0
        self._epoch_length = steps_per_epoch
        self._rate = math.nan
        self._moments: list[tuple[int, float]] = []
        self._slopes: list[tuple[float, int, float]] = []
        self._curvatures: list[tuple[float, float, int]] = []
        self._forward: _FirstForward | None = None  # there while the coming step is a sampled one
        self._forward_handle: RemovableHandle | None = None
        self._parameters_before: Tensor | None = None
        self._copies: list[Tensor] | None = None  # of the parameters before a step whose gradient is to be checked
        self._passes: BackwardPasses | None = None
        self._sampled: _SampledStep | None = None
        self._both_ends: bool | None = None  # None until the first sampled step told whether .grad can be used
        self._early = False  # after_step was called before any step
        self._problems: dict[str, str] = {}  # by their kind
        self._average: Callable[[Tensor], Tensor] | None = None  # over processes, where several train together
        if isinstance(model, DistributedDataParallel):
            self._average = _mean_over(model)
        self._keeps = True
        self._facts = {
            "gradient": gradient,
            "storage": self._projection.description,
            "parameters": sum(parameter.numel() for parameter in self._parameters),
            "probe": 0 if self._probe is None else len(self._probe.x),
            "batch_size": batch_size,
            "seed": seed,
        }
        if optimizer is not None and (warning := caveat(optimizer)):
            self._complain("optimizer", warning)
        if storage == "auto":
            logger.info("storage=auto keeps %s", self._projection.description)
        self._handles: list[RemovableHandle] = []
        if optimizer is not None:
            self._handles = [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_optimizer_step),
            ]
        self._expect_step()

    def join(self, average: Callable[[Tensor], Tensor], *, keeps: bool) -> None:
        """This is one of several processes that train one model (DistributedDataParallel), each with a Recorder.

        `average` gives the mean of a tensor over them, at a call in each: the closures of `after_step` see a part of
        the batch only. The one that `keeps` has the trace in the end; the others help to measure it.
        """
        self._average, self._keeps = average, keeps

    def after_step(self, closure: Callable[[], Tensor]) -> None:
        """At a sampled step, measure how much the gradient changed per length of the step; else return at once.

        `closure` recomputes the loss that the step descended (same batch, same mode) and returns it, without a
        backward pass. The gradient before the step is the one in `.grad` when the step was taken. At the first sampled
        step, and wherever something else than one backward pass wrote to `.grad` (clipping, accumulation), the closure
        is evaluated there too, which costs a pass more: if the two differ, the closure's is used, and `problems` says
        what was done and what to do. A change of the gradient that is lost in rounding gives no slope.
        """
        if self._handles and self._step_of_epoch == 0 and not self._moments:
            self._early = True
        start, self._sampled = self._sampled, None
        if start is None or start.step != self._step:
            return
        self._expect_step(paused=True)
        before = start.gradient
        if start.copies is not None:
            with standing_at(self._parameters, start.copies):
                own = self._gradient_of(closure, start)
            problem = objection(before, own, passes=start.passes, early=self._early)
            self._both_ends = problem is not None
            if problem is not None:
                self._complain(*problem)
                before = own
        after = self._gradient_of(closure, start)
        self._expect_step()
        parameters = project(self._projection, self._parameters)
        rise, run = (after - before).norm(), (parameters - start.parameters).norm()
        if torch.isfinite(rise) and run > 0 and rise > start.rounding * before.norm():
            self._slopes.append((float(rise / run), self._step, self._rate))

    def record(self) -> None:
        """Mark a moment, such as the end of an epoch."""
        if self._keeps:
            self._keep_moment(len(self._moments) + 1)
        self._moments.append((self._step, self._rate))
        self._gradient_sum.zero_()
        self._steps_summed = 0
        if self._step_of_epoch:
            self._epoch_length = self._epoch_length or self._step_of_epoch
        self._step_of_epoch = 0
        self._expect_step()

    @property
    def problems(self) -> tuple[str, ...]:
        """What stands between this loop and an L to be trusted, and what to do about it; each was logged too."""
        return tuple(self._problems.values())

    @property
    def trace(self) -> Trace:
        """What was recorded so far."""
        if not self._keeps:
            raise InputError("Another process keeps the trace of this training: ask the Recorder of the first rank.")
        return Trace(
            squared_gradient_distances=self._gradient_moments.squared,
            squared_parameter_distances=self._parameter_moments.squared,
            steps=np.array([step for step, _ in self._moments], dtype=np.int64),
            learning_rates=np.array([rate for _, rate in self._moments]),
            slopes=np.array([slope for slope, _, _ in self._slopes]),
            slope_steps=np.array([step for _, step, _ in self._slopes], dtype=np.int64),
            slope_learning_rates=np.array([rate for _, _, rate in self._slopes]),
            curvatures=np.array([value for value, _, _ in self._curvatures]),
            curvature_residuals=np.array([residual for _, residual, _ in self._curvatures]),
            curvature_steps=np.array([step for _, _, step in self._curvatures], dtype=np.int64),
            facts=self._facts | ({"problems": list(self.problems)} if self._problems else {}),
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that `restore` needs to go on from here as if the run had not stopped."""
        gradient_tensors, gradient_facts = self._gradient_moments.state()
        parameter_tensors, parameter_facts = self._parameter_moments.state()
        tensors = gradient_tensors | parameter_tensors | {"gradient_sum": self._gradient_sum.clone()}
        return tensors, {
            "trace": self._facts,
            "gradients": gradient_facts,
            "parameters": parameter_facts,
            "steps_summed": self._steps_summed,
            "step": self._step,
            "step_of_epoch": self._step_of_epoch,
            "epoch_length": self._epoch_length,
            "rate": _json_number(self._rate),
            "moments": [[step, _json_number(rate)] for step, rate in self._moments],
            "slopes": [list(slope) for slope in self._slopes],
            "curvatures": [[_json_number(value), _json_number(error), step] for value, error, step in self._curvatures],
            "both_ends": self._both_ends,
            "problems": dict(self._problems),
        }

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Put back what `state` gave, into a recorder made with the same arguments."""
        if facts["trace"] != self._facts:
            raise InputError(
                f"The saved trace was recorded with {facts['trace']}, this recorder is set to {self._facts}. "
                "Use the same settings, or delete the run to start it again."
            )
        if self._keeps:
            self._gradient_moments.restore(tensors, facts["gradients"])
            self._parameter_moments.restore(tensors, facts["parameters"])
        self._gradient_sum.copy_(tensors["gradient_sum"])
        self._steps_summed = facts["steps_summed"]
        self._step = facts["step"]
        self._step_of_epoch = facts["step_of_epoch"]
        self._epoch_length = facts["epoch_length"]
        self._rate = _number(facts["rate"])
        self._moments = [(step, _number(rate)) for step, rate in facts["moments"]]
        self._slopes = [(slope, step, rate) for slope, step, rate in facts["slopes"]]
        self._curvatures = [(_number(value), _number(error), step) for value, error, step in facts["curvatures"]]
        self._both_ends, self._problems = facts["both_ends"], dict(facts["problems"])
        self._expect_step()

    def close(self) -> None:
        """Stop watching; the trace stays."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._expect_step(paused=True)

    def _expect_step(self, *, paused: bool = False) -> None:
        """Prepare for the coming step: a sampled one must remember the random state of its first forward pass."""
        if self._forward_handle is not None:
            self._forward_handle.remove()
        if self._passes is not None:
            self._passes.close()
        self._forward = self._forward_handle = self._passes = None
        if self._handles and not paused and self._is_sampled():
            self._forward = _FirstForward(self._device)
            self._passes = BackwardPasses(self._parameters)
            self._forward_handle = self._model.register_forward_pre_hook(self._forward)

    def _is_sampled(self) -> bool:
        if self._slopes_per_epoch == 0:
            return False
        if self._epoch_length is None:
            return self._step_of_epoch & (self._step_of_epoch + 1) == 0
        stride = max(1, self._epoch_length // self._slopes_per_epoch)
        phase = int(np.random.default_rng((self._seed, len(self._moments))).integers(stride))
        turn, position = divmod(self._step_of_epoch, stride)
        return position == phase and turn < self._slopes_per_epoch

    def _before_step(self, *_: object) -> None:
        if self._forward is None or self._passes is None:
            return
        self._parameters_before = project(self._projection, self._parameters)
        unsure = self._both_ends is not False or (self._average is None and self._passes.touched)
        self._copies = [parameter.detach().clone() for parameter in self._parameters] if unsure else None

    # After the step, not before it: where a closure computes the gradients (Lightning), there are none before.
    def _after_optimizer_step(self, optimizer: Optimizer, *_: object) -> None:
        gradients = [parameter.grad for parameter in self._parameters]
        self._step += 1
        self._step_of_epoch += 1
        self._rate = float(optimizer.param_groups[0]["lr"])
        if self._gradient == "epoch_mean":
            with torch.no_grad():
                for index, gradient in enumerate(gradients):
                    if gradient is not None:
                        self._projection.add(self._gradient_sum, index, dense(gradient))
            self._steps_summed += 1
        if self._forward is not None and self._passes is not None and self._parameters_before is not None:
            self._sampled = _SampledStep(
                step=self._step,
                parameters=self._parameters_before,
                copies=self._copies,
                gradient=project(self._projection, gradients),
                passes=self._passes.times,
                random=self._forward.random,
                rounding=_rounding(self._forward.autocast, self._parameters[0].dtype),
            )
            self._parameters_before = self._copies = None
        self._expect_step()

    def _gradient_of(self, closure: Callable[[], Tensor], start: "_SampledStep") -> Tensor:
        """The closure's gradient where the parameters stand now, with the dropout masks that the step saw."""
        with undisturbed(self._model, self._device), _own_gradients(self._model, self._parameters):
            if start.random is not None:
                set_random_state(start.random, self._device)
            gradient = project_gradient(self._projection, self._parameters, lambda: _loss(closure))
        return gradient if self._average is None else self._average(gradient)

    def _complain(self, kind: str, text: str) -> None:
        if kind not in self._problems:
            self._problems[kind] = text
            logger.warning(text)

    def _keep_moment(self, number: int) -> None:
        self._gradient_moments.append(self._moment_gradient())
        self._parameter_moments.append(project(self._projection, self._parameters))
        if self._curvature_every and number % self._curvature_every == 0:
            curvature = largest_curvature(
                self._model, self._needed_probe(), iterations=self._curvature_iterations, seed=self._seed + number
            )
            self._curvatures.append((curvature.value, curvature.residual, self._step))

    def _moment_gradient(self) -> Tensor:
        if self._gradient == "epoch_mean":
            if self._steps_summed == 0:
                raise InputError(
                    "record() found no optimizer step since the last one. Call it after an epoch of steps of the "
                    'optimizer that the Recorder was given, or use gradient="probe".'
                )
            return self._gradient_sum / self._steps_summed
        if self._gradient == "probe":
            vector = self._projection.zeros()
            for _, loss in self._needed_probe().evaluations(self._model):
                project_gradient(self._projection, self._parameters, loss, vector)
            return vector
        return input_gradient(self._model, self._needed_probe())

    def _needed_probe(self) -> Probe:
        if self._probe is None:
            raise InputError("Probe gradients, input gradients and curvatures need examples: pass probe=(x, y).")
        return self._probe

    def _check(self, optimizer: Optimizer | None, gradient: Gradient, storage: Storage, slopes: int) -> None:
        if not self._parameters:
            raise InputError("No parameter of the model requires a gradient; there is nothing to record.")
        if gradient not in get_args(Gradient) or storage not in get_args(Storage):
            raise InputError(
                f"gradient is one of {get_args(Gradient)}, storage one of {get_args(Storage)}; "
                f"not {gradient!r} and {storage!r}."
            )
        if gradient == "epoch_mean" and optimizer is None:
            raise InputError('Epoch means come from the optimizer\'s steps: pass it, or use gradient="probe".')
        if optimizer is not None:
            watches_steps = slopes > 0 or gradient == "epoch_mean"
            check_optimizer(optimizer, self._parameters, watches_steps=watches_steps)


def input_gradient(model: nn.Module, probe: Probe) -> Tensor:
    """The released code's gradient: with respect to pixels, averaged over a batch whose loss is an average already."""
    total = torch.zeros(probe.x[0].numel())
    for inputs, loss in probe.evaluations(model):
        inputs.requires_grad_(True)
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(), inputs)
        total += gradient.mean(0).reshape(-1).cpu()
    return total


class _FirstForward:
    """A forward hook that remembers the random state of the first training pass; holds nothing else of the run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.random: dict[str, Any] | None = None
        self.autocast: torch.dtype | None = None

    def __call__(self, module: nn.Module, _: object) -> None:
        if self.random is None and module.training:
            self.random = random_state(self._device)
            if torch.is_autocast_enabled(self._device.type):
                self.autocast = torch.get_autocast_dtype(self._device.type)


@dataclass(frozen=True, eq=False)
class _SampledStep:
    step: int
    parameters: Tensor
    copies: list[Tensor] | None
    gradient: Tensor
    passes: int
    random: dict[str, Any] | None
    rounding: float  # the relative change of a gradient that is lost in rounding


def _rounding(autocast: torch.dtype | None, own: torch.dtype) -> float:
    """Long sums of the parameters' own precision lose some digits; autocast sums in float32 and rounds once a layer."""
    return max(32 * torch.finfo(own).eps, 0.0 if autocast is None else 4 * torch.finfo(autocast).eps)


@contextmanager
def _own_gradients(model: nn.Module, parameters: list[Tensor]) -> Iterator[None]:
    """Keep `.grad` away from the closure, and a wrapped model's processes from waiting for each other's."""
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    alone = model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()
    try:
        with alone:
            yield
        if any(parameter.grad is not None for parameter in parameters):
            raise _calls_backward()
    except RuntimeError as error:
        if any(parameter.grad is not None for parameter in parameters):
            raise _calls_backward() from error
        raise
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


def _calls_backward() -> InputError:
    return InputError(
        "The closure of after_step calls backward(). Let it return the loss only: `def closure(): return "
        "loss_fn(model(x), y)`; the recorder takes the gradient itself."
    )


def _loss(closure: Callable[[], Tensor]) -> Tensor:
    loss = closure()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(f"The closure of after_step must return the loss, one number as a tensor, not {what}.")
    if not loss.requires_grad:
        raise InputError("The loss of the closure has no gradient: do not detach it or compute it under no_grad().")
    return loss.reshape(())


def _mean_over(model: DistributedDataParallel) -> Callable[[Tensor], Tensor]:
    def average(vector: Tensor) -> Tensor:
        torch.distributed.all_reduce(vector, group=model.process_group)
        return vector / torch.distributed.get_world_size(model.process_group)

    return average


def _projection(parameters: list[Tensor], storage: Storage, entries: int, seed: int) -> Projection:
    size = sum(parameter.numel() for parameter in parameters)
    if storage == "sketch" or (storage == "auto" and size > EXACT_LIMIT):
        return CountSketch(parameters, entries=entries, seed=seed)
    return Whole(parameters)


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value
