"""Local slopes: at a few steps of an epoch, how much the gradient of one batch changes per length of the step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from excite.randomness import random_state, set_random_state, undisturbed
from excite.trace.moments import Projection, project, project_gradient
from excite.trace.used_gradient import BackwardPasses, loss_of, objection, own_gradients, standing_at

Complain = Callable[[str, str], None]  # (kind, text) of what is wrong with a loop


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
        self._forward_handles: list[RemovableHandle] = []
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
            self._forward_handles = [each.register_forward_pre_hook(self._forward) for each in _called(self._model)]

    def before_step(self) -> None:
        if self._forward is None or self._passes is None:
            return
        self._parameters_before = project(self._projection, self._parameters)
        unsure = self.both_ends is not False or (self.average is None and self._passes.touched)
        self._copies = [parameter.detach().clone() for parameter in self._parameters] if unsure else None

    def after_step(self, step: int, gradients: Sequence[Tensor | None]) -> None:
        """The optimizer has taken step number `step`, which used these gradients."""
        self.step_of_epoch += 1
        if self._forward is not None and self._passes is not None and self._parameters_before is not None:
            self._sampled = _SampledStep(
                step=step,
                parameters=self._parameters_before,
                copies=self._copies,
                gradient=project(self._projection, gradients),
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
        for handle in self._forward_handles:
            handle.remove()
        if self._passes is not None:
            self._passes.close()
        self._forward, self._forward_handles, self._passes = None, [], None

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


def _called(model: nn.Module) -> list[nn.Module]:
    """Whose forward pass a step begins with: Lightning's training_step calls parts of the module, not the module.

    A hook inside of a compiled one would have it compiled again.
    """
    compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None
    return [model] if compiled else [model, *model.children()]


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
