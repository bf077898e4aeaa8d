"""Local slopes: at a few steps of an epoch, how much the gradient of one batch changes per length of the step.

What other people's loops do to them is here, too, each with what to do about it: optimizers whose steps have no
gradient of their own, closures that are none, gradients that were clipped, scaled or accumulated before the step.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from excite.errors import InputError
from excite.randomness import random_state, set_random_state, undisturbed
from excite.trace.moments import Projection, project, project_gradient

Complain = Callable[[str, str], None]  # (kind, text) of what is wrong with a loop
SAME = 0.01  # relative difference that rounding and nondeterministic kernels stay well below
PARALLEL = 0.999  # cosine from which two gradients differ in length only
BOTH_ENDS = "Slopes are measured with the closure at both ends of the step instead, at one pass more each"


class LocalSlopes:
    """Told of every step, it measures the sampled ones; `complain` hears what stands in the way."""

    def __init__(
        self,
        model: nn.Module,
        parameters: list[Tensor],
        projection: Projection,
        *,
        per_epoch: int,
        steps_per_epoch: int | None,
        seed: int,
        complain: Complain,
    ) -> None:
        self._model, self._parameters, self._projection, self._complain = model, parameters, projection, complain
        self._device = parameters[0].device
        self._per_epoch, self._seed = per_epoch, seed
        self.measured: list[tuple[float, int, float]] = []  # slope, step, rate
        self.both_ends: bool | None = None  # None until the first sampled step told whether .grad can be used
        self.epoch, self.step_of_epoch, self.epoch_length = 0, 0, steps_per_epoch
        self.average: Callable[[Tensor], Tensor] | None = None  # over processes, where several train together
        if isinstance(model, DistributedDataParallel):
            self.average = _mean_over(model)
        self._forward: _FirstForward | None = None  # there while the coming step is a sampled one
        self._forward_handle: RemovableHandle | None = None
        self._parameters_before: Tensor | None = None
        self._copies: list[Tensor] | None = None  # of the parameters before a step whose gradient is to be checked
        self._passes: BackwardPasses | None = None
        self._sampled: _SampledStep | None = None
        self._early = False  # measure was called before any step

    def expect_step(self) -> None:
        """Prepare for the coming step: a sampled one must remember the random state of its first forward pass."""
        self._pause()
        if self._is_sampled():
            self._forward = _FirstForward(self._device)
            self._passes = BackwardPasses(self._parameters)
            self._forward_handle = self._model.register_forward_pre_hook(self._forward)

    def before_step(self) -> None:
        if self._forward is None or self._passes is None:
            return
        self._parameters_before = project(self._projection, self._parameters)
        unsure = self.both_ends is not False or (self.average is None and self._passes.touched)
        self._copies = [parameter.detach().clone() for parameter in self._parameters] if unsure else None

    def after_step(self, step: int) -> None:
        """The optimizer has taken step number `step`; its gradients are still there."""
        self.step_of_epoch += 1
        if self._forward is not None and self._passes is not None and self._parameters_before is not None:
            self._sampled = _SampledStep(
                step=step,
                parameters=self._parameters_before,
                copies=self._copies,
                gradient=project(self._projection, [parameter.grad for parameter in self._parameters]),
                passes=self._passes.times,
                random=self._forward.random,
                rounding=_rounding(self._forward.autocast, self._parameters[0].dtype),
            )
            self._parameters_before = self._copies = None
        self.expect_step()

    def measure(self, closure: Callable[[], Tensor], step: int, rate: float) -> None:
        """The slope of the step just taken, if it is a sampled one: see `Recorder.after_step`."""
        if self.step_of_epoch == 0 and self.epoch == 0:
            self._early = True
        start, self._sampled = self._sampled, None
        if start is None or start.step != step:
            return
        self._pause()
        before = start.gradient
        if start.copies is not None:
            with standing_at(self._parameters, start.copies):
                own = self._gradient_of(closure, start)
            problem = objection(before, own, passes=start.passes, early=self._early)
            self.both_ends = problem is not None
            if problem is not None:
                self._complain(*problem)
                before = own
        after = self._gradient_of(closure, start)
        self.expect_step()
        parameters = project(self._projection, self._parameters)
        rise, run = (after - before).norm(), (parameters - start.parameters).norm()
        if torch.isfinite(rise) and run > 0 and rise > start.rounding * before.norm():
            self.measured.append((float(rise / run), step, rate))

    def end_epoch(self) -> None:
        if self.step_of_epoch:
            self.epoch_length = self.epoch_length or self.step_of_epoch
        self.epoch, self.step_of_epoch = self.epoch + 1, 0
        self.expect_step()

    def close(self) -> None:
        """No step is sampled any more."""
        self._per_epoch = 0
        self._pause()

    def _pause(self) -> None:
        if self._forward_handle is not None:
            self._forward_handle.remove()
        if self._passes is not None:
            self._passes.close()
        self._forward = self._forward_handle = self._passes = None

    def _is_sampled(self) -> bool:
        if self._per_epoch == 0:
            return False
        if self.epoch_length is None:
            return self.step_of_epoch & (self.step_of_epoch + 1) == 0
        stride = max(1, self.epoch_length // self._per_epoch)
        phase = int(np.random.default_rng((self._seed, self.epoch)).integers(stride))
        turn, position = divmod(self.step_of_epoch, stride)
        return position == phase and turn < self._per_epoch

    def _gradient_of(self, closure: Callable[[], Tensor], start: "_SampledStep") -> Tensor:
        """The closure's gradient where the parameters stand now, with the dropout masks that the step saw."""
        with undisturbed(self._model, self._device), own_gradients(self._model, self._parameters):
            if start.random is not None:
                set_random_state(start.random, self._device)
            gradient = project_gradient(self._projection, self._parameters, lambda: loss_of(closure))
        return gradient if self.average is None else self.average(gradient)


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


def _mean_over(model: DistributedDataParallel) -> Callable[[Tensor], Tensor]:
    def average(vector: Tensor) -> Tensor:
        torch.distributed.all_reduce(vector, group=model.process_group)
        return vector / torch.distributed.get_world_size(model.process_group)

    return average


def check_optimizer(optimizer: Optimizer, parameters: Sequence[Tensor], *, watches_steps: bool) -> None:
    """Refuse an optimizer that moves another model, and one whose steps have no gradient of their own."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held.isdisjoint(map(id, parameters)):
        raise InputError(
            "The optimizer holds none of this model's parameters, so its steps do not move it. Make it from "
            "model.parameters() of the same model, after copying it or moving it to its device."
        )
    if watches_steps and isinstance(optimizer, LBFGS):
        raise InputError(
            "LBFGS tries several points in one step, so no gradient belongs to the step. Record with "
            'gradient="probe" and slopes_per_epoch=0, or train with SGD.'
        )


def caveat(optimizer: Optimizer) -> str | None:
    """What to know about 1/L under this optimizer; None for SGD, with or without momentum."""
    if isinstance(optimizer, SGD):
        return None
    name = type(optimizer).__name__
    return (
        f"L is that of the raw gradient and 1/L a rate for steps along it; {name} rescales the gradient, so 1/L is no "
        f"rate for {name}. Train with SGD at 1/L, or look for {name}'s own edge with find_edge."
    )


class BackwardPasses:
    """Notes, between two steps, how often each gradient was added to and how long it was left."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._times: Counter[int] = Counter()
        self._lengths: dict[int, Tensor] = {}
        own = weakref.ref(self)  # torch holds hooks where no garbage collector looks: one that holds us stays for good

        def note(parameter: Tensor) -> None:
            if (passes := own()) is not None:
                passes._note(parameter)

        self._handles = [
            parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for parameter in parameters
        ]

    def _note(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._times[id(parameter)] += 1
            self._lengths[id(parameter)] = parameter.grad.detach().norm()

    @property
    def times(self) -> int:
        """How many backward passes reached the same gradient."""
        return max(self._times.values(), default=0)

    @property
    def touched(self) -> bool:
        """Whether gradients are other than one backward pass left them: accumulated, clipped, scaled, or not there."""
        if self.times != 1:
            return True
        now = [parameter.grad for parameter in self._parameters if id(parameter) in self._lengths]
        then = [self._lengths[id(parameter)] for parameter in self._parameters if id(parameter) in self._lengths]
        return any(
            gradient is None or not torch.isclose(gradient.detach().norm(), length, rtol=1e-5, atol=0.0)
            for gradient, length in zip(now, then, strict=True)
        )

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


@contextmanager
def standing_at(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """The parameters have these values inside; afterwards their own, in their own memory."""
    own = [parameter.data for parameter in parameters]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value
    try:
        yield
    finally:
        for parameter, value in zip(parameters, own, strict=True):
            parameter.data = value


class Objection(NamedTuple):
    """Said once for each kind, whatever the numbers in its text are at later steps."""

    kind: str
    text: str


def objection(used: Tensor, own: Tensor, *, passes: int, early: bool) -> Objection | None:
    """What is wrong with a step that used the gradient `used` where the closure's is `own`; None if nothing is."""
    lengths = float(used.norm()), float(own.norm())
    if float((used - own).norm()) <= SAME * max(lengths):
        return None
    cosine = float(torch.dot(used, own)) / (lengths[0] * lengths[1]) if min(lengths) > 0 else 0.0
    if cosine > PARALLEL:
        return Objection(
            "scaled",
            f"The step used {lengths[0] / lengths[1]:.3g} times the gradient of the closure: it was clipped or scaled. "
            f"{BOTH_ENDS}. L is that of the closure's loss, and 1/L a rate for steps that are not clipped.",
        )
    if early:
        return Objection(
            "early",
            "after_step was called before optimizer.step(), so it sees the loss of the next batch. Call it right after "
            f"the step. {BOTH_ENDS}.",
        )
    if passes > 1:
        return Objection(
            "accumulated",
            f"The step used gradients of {passes} backward passes, the closure gives one batch's. {BOTH_ENDS}. For the "
            "L of the whole step let the closure return the mean loss of all its batches.",
        )
    return Objection(
        "other",
        f"The step did not use the gradient of the closure (cosine {cosine:.2g}). Call after_step right after the step "
        f"with a closure of the same batch, loss and mode. {BOTH_ENDS}.",
    )


@contextmanager
def own_gradients(model: nn.Module, parameters: list[Tensor]) -> Iterator[None]:
    """Keep `.grad` away from the closure, and a wrapped model's processes from waiting for each other's."""
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    alone = model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()
    try:
        with alone:
            yield
    finally:
        calls_backward = any(parameter.grad is not None for parameter in parameters)
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient
        if calls_backward:
            raise InputError(
                "The closure of after_step calls backward(). Let it return the loss only: `def closure(): return "
                "loss_fn(model(x), y)`; the recorder takes the gradient itself."
            )


def loss_of(closure: Callable[[], Tensor]) -> Tensor:
    loss = closure()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(f"The closure of after_step must return the loss, one number as a tensor, not {what}.")
    if not loss.requires_grad:
        raise InputError("The loss of the closure has no gradient: do not detach it or compute it under no_grad().")
    return loss.reshape(())
