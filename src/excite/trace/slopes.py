"""Local slopes: at a few steps per epoch, how much the gradient of one batch changes per length of the step.

s = ‖g(θᵏ⁺¹) − g(θᵏ)‖ / ‖θᵏ⁺¹ − θᵏ‖, both gradients of the same batch with the same dropout masks. g(θᵏ) is the gradient
that the step used, unless something changed it after the backward pass.
"""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from excite.errors import InputError
from excite.precision import exact_products, rounding_of_products
from excite.randomness import random_state, set_random_state, undisturbed
from excite.trace.moments import Projection, project, project_gradient

SAME = 0.01  # relative difference between two gradients; rounding and nondeterministic kernels stay well below
ROUNDED = 0.5  # the same for a step in bfloat16, float16 or TF32, whose rounding reaches 0.17 with ResNet-20


class LocalSlopes:
    """Measures the slope of sampled steps. `warn(kind, text)` receives what is wrong with the training loop."""

    def __init__(
        self,
        model: nn.Module,
        parameters: list[Tensor],
        projection: Projection,
        *,
        per_epoch: int,
        steps_per_epoch: int | None,
        seed: int,
        warn: Callable[[str, str], None],
    ) -> None:
        self._model, self._parameters, self._projection, self._warn = model, parameters, projection, warn
        self._device = parameters[0].device
        self._per_epoch, self._seed = per_epoch, seed
        self.measured: list[tuple[float, int, float]] = []  # slope, step, learning rate
        self.average: Callable[[Tensor], Tensor] | None = None  # over the processes of a distributed training
        if isinstance(model, DistributedDataParallel):
            self.average = _mean_over(model)
        self.epoch, self.step_of_epoch, self._epoch_length = 0, 0, steps_per_epoch
        self._both_ends: bool | None = None  # whether .grad differs from the closure's gradient; None: not known yet
        self._next: _SampledStep | None = None  # the next step, if it is sampled
        self._taken: _SampledStep | None = None  # the last sampled step, until it is measured

    def expect_step(self) -> None:
        """Prepare for the next step: if it is sampled, its first forward and all backward passes are watched."""
        self._stop_watching()
        if self._is_sampled():
            self._next = _SampledStep(self._model, self._parameters)

    def before_step(self) -> None:
        if self._next is None:
            return
        self._next.parameters = project(self._projection, self._parameters)
        changed = self._next.is_rounded or (self.average is None and self._next.backward.gradients_changed)
        if self._both_ends is not False or changed:
            self._next.copies = [parameter.detach().clone() for parameter in self._parameters]

    def after_step(self, step: int, gradients: Sequence[Tensor | None]) -> None:
        """The optimizer has taken step number `step` with these gradients."""
        self.step_of_epoch += 1
        if self._next is not None and self._next.parameters is not None:
            self._taken = self._next
            self._taken.number, self._taken.gradient = step, project(self._projection, gradients)
        self.expect_step()

    def measure(self, closure: Callable[[], Tensor], step: int, rate: float) -> None:
        """Append the slope of the step just taken, if it was sampled; see `Recorder.after_step`."""
        taken, self._taken = self._taken, None
        if taken is None or taken.parameters is None or taken.number != step:
            return
        self._stop_watching()
        before = taken.gradient
        if taken.copies is not None:
            with at_parameters(self._parameters, taken.copies):
                expected = self._gradient(closure, taken)
            problem = other_gradient(before, expected, ROUNDED if taken.is_rounded else SAME)
            self._both_ends = problem is not None
            if problem is not None:
                self._warn("other gradient", problem)
            if problem is not None or taken.is_rounded:
                before = expected
        after = self._gradient(closure, taken)
        self.expect_step()
        change = (after - before).norm()
        length = (project(self._projection, self._parameters) - taken.parameters).norm()
        if torch.isfinite(change) and length > 0 and change > taken.rounding * before.norm():
            self.measured.append((float(change / length), step, rate))

    def end_epoch(self) -> None:
        if self.step_of_epoch:
            self._epoch_length = self._epoch_length or self.step_of_epoch
        self.epoch, self.step_of_epoch = self.epoch + 1, 0
        self.expect_step()

    def facts(self) -> dict[str, Any]:
        """The state, for `restore`."""
        return {
            "step_of_epoch": self.step_of_epoch,
            "epoch_length": self._epoch_length,
            "slopes": [list(slope) for slope in self.measured],
            "both_ends": self._both_ends,
        }

    def restore(self, facts: dict[str, Any], *, epoch: int) -> None:
        self.measured = [(slope, step, rate) for slope, step, rate in facts["slopes"]]
        self._both_ends, self.epoch = facts["both_ends"], epoch
        self.step_of_epoch, self._epoch_length = facts["step_of_epoch"], facts["epoch_length"]
        self.expect_step()

    def close(self) -> None:
        """Sample no further steps."""
        self._per_epoch = 0
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._next is not None:
            self._next.close()
        self._next = None

    def _is_sampled(self) -> bool:
        if self._per_epoch == 0:
            return False
        if self._epoch_length is None:
            return self.step_of_epoch & (self.step_of_epoch + 1) == 0
        stride = max(1, self._epoch_length // self._per_epoch)
        phase = int(np.random.default_rng((self._seed, self.epoch)).integers(stride))
        index, position = divmod(self.step_of_epoch, stride)
        return position == phase and index < self._per_epoch

    def _gradient(self, closure: Callable[[], Tensor], taken: "_SampledStep") -> Tensor:
        """The closure's gradient at the current parameters, with the dropout masks of the sampled step."""

        def loss() -> Tensor:
            value = closure()
            called_backward = any(parameter.grad is not None for parameter in self._parameters)
            if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad or called_backward:
                got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise InputError(
                    "The closure passed to after_step must return the loss as a scalar tensor that has a gradient, "
                    f"without calling backward(): `def closure(): return loss_fn(model(x), y)`. It returned {got}."
                )
            return value.reshape(())

        undisturbing = undisturbed(self._model, self._device)
        alone = _separate_gradients(self._model, self._parameters)
        with undisturbing, alone, taken.watching_closure(), exact_products(self._device):
            if taken.forward.random is not None:
                set_random_state(taken.forward.random, self._device)
            gradient = project_gradient(self._projection, self._parameters, loss)
        return gradient if self.average is None else self.average(gradient)


def other_gradient(used: Tensor, expected: Tensor, tolerance: float = SAME) -> str | None:
    """The warning for a step that used another gradient than the closure's; None if they agree or are not finite."""
    length, expected_length = float(used.norm()), float(expected.norm())
    same = float((used - expected).norm()) <= tolerance * max(length, expected_length)
    if same or not math.isfinite(length + expected_length):
        return None
    product = length * expected_length
    cosine = float(torch.dot(used, expected)) / product if product > 0 else 0.0
    return (
        f"The step did not use the closure's gradient: their norms are {length:.3g} and {expected_length:.3g}, their "
        f"cosine is {cosine:.2g}. If your loop clips gradients, 1/L is a rate for steps without clipping. If it "
        "accumulates them, let the closure return the mean loss of all batches of the step. Otherwise call after_step "
        "right after optimizer.step(), with a closure for the same batch, loss and mode. Slopes now use the closure's "
        "gradient before and after the step, which costs one more pass each."
    )


class _SampledStep:
    """What is remembered of a sampled step, from its forward pass until its slope is measured."""

    def __init__(self, model: nn.Module, parameters: list[Tensor]) -> None:
        self._dtype, self._device = parameters[0].dtype, parameters[0].device
        self.forward, self._closure = (_FirstForward(self._device) for _ in range(2))
        self.backward = BackwardPasses(parameters)
        # Lightning's training_step calls children, not the module. A hook inside a compiled module would recompile it.
        compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None
        self._modules = [model] if compiled else [model, *model.children()]
        self._handles = [module.register_forward_pre_hook(self.forward) for module in self._modules]
        self.number = 0
        self.gradient: Tensor  # set after the step
        self.parameters: Tensor | None = None  # before the step
        self.copies: list[Tensor] | None = None  # of the parameters before the step, if its gradient must be checked

    @property
    def rounding(self) -> float:
        """Relative change of the gradient that is lost in rounding."""
        # Long sums lose digits of the parameters' precision. Autocast sums in float32 and rounds once per layer.
        autocast = torch.finfo(self._closure.autocast or torch.float64).eps
        return max(32 * torch.finfo(self._dtype).eps, 4 * autocast)

    @property
    def is_rounded(self) -> bool:
        """Whether the step ran under autocast or with TF32, so that the closure's float32 gradient is more precise."""
        return self.forward.autocast is not None or rounding_of_products(self._device) > 0

    @contextmanager
    def watching_closure(self) -> Iterator[None]:
        """Notice whether the closure runs under autocast, too."""
        handles = [module.register_forward_pre_hook(self._closure) for module in self._modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.backward.close()


class _FirstForward:
    """A forward hook that stores the random state of the first training pass, and nothing else of the run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.random: dict[str, Any] | None = None
        self.autocast: torch.dtype | None = None

    def __call__(self, module: nn.Module, _: object) -> None:
        if self.random is None and module.training:
            self.random = random_state(self._device)
            if torch.is_autocast_enabled(self._device.type):
                self.autocast = torch.get_autocast_dtype(self._device.type)


class BackwardPasses:
    """Notices whether `.grad` is anything but the result of one backward pass since the last step."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self.counts: Counter[int] = Counter()
        self._norms: dict[int, Tensor] = {}
        this = weakref.ref(self)  # the garbage collector does not see torch's hooks: a strong reference would leak

        def note(parameter: Tensor) -> None:
            passes = this()
            if passes is not None and parameter.grad is not None:
                passes.counts[id(parameter)] += 1
                passes._norms[id(parameter)] = parameter.grad.detach().norm()

        self._handles: list[RemovableHandle] = [
            parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for parameter in parameters
            if parameter.requires_grad
        ]

    @property
    def gradients_changed(self) -> bool:
        """Whether gradients were accumulated, clipped, scaled or set to None."""
        if max(self.counts.values(), default=0) != 1:
            return True
        watched = [(p.grad, self._norms[id(p)]) for p in self._parameters if id(p) in self._norms]
        return any(
            gradient is None or not torch.isclose(gradient.detach().norm(), norm, rtol=1e-5, atol=0.0)
            for gradient, norm in watched
        )

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


class UsedGradients:
    """The gradients that an optimizer step used.

    They are read after the step, because a closure may compute them during it. Some optimizers overwrite them during
    the step; then they are copied before.
    """

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._copies: list[Tensor | None] | None = None
        # Torch's foreach SGD, its default on CUDA, adds Nesterov momentum to `.grad` unless weight decay made a copy.
        overwrites = isinstance(optimizer, SGD) and any(
            group["nesterov"] and not group["weight_decay"] and not group["fused"] and group["foreach"] is not False
            for group in optimizer.param_groups
        )
        self.handles = [optimizer.register_step_pre_hook(self._before)] if overwrites else []

    def after_step(self) -> list[Tensor | None]:
        copies, self._copies = self._copies, None
        return [parameter.grad for parameter in self._parameters] if copies is None else copies

    def _before(self, _: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any] | None:
        optimizer, closure = (*arguments, options.get("closure"))[:2]

        def closure_then_copy() -> Any:
            loss = closure() if closure else None
            self._copies = [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]
            return loss

        if closure:
            return (optimizer, closure_then_copy), {}
        closure_then_copy()
        return None


@contextmanager
def at_parameters(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the parameters have these values; afterwards their previous ones, in the same memory."""
    previous = [parameter.data for parameter in parameters]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value
    try:
        yield
    finally:
        for parameter, value in zip(parameters, previous, strict=True):
            parameter.data = value


@contextmanager
def _separate_gradients(model: nn.Module, parameters: list[Tensor]) -> Iterator[None]:
    """Inside, `.grad` is empty and DistributedDataParallel does not synchronize; afterwards `.grad` is restored."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        with model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext():
            yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def _mean_over(model: DistributedDataParallel) -> Callable[[Tensor], Tensor]:
    def average(vector: Tensor) -> Tensor:
        torch.distributed.all_reduce(vector, group=model.process_group)
        return vector / torch.distributed.get_world_size(model.process_group)

    return average
