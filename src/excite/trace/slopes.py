"""Local slopes: at a few steps per epoch, how much the gradient of one batch changes per length of the step.

s = ‖g(θᵏ⁺¹) − g(θᵏ)‖ / ‖θᵏ⁺¹ − θᵏ‖, both gradients of the same batch with the same dropout masks. g(θᵏ) is the gradient
that the step used, unless something changed it after the backward pass.
"""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from excite.errors import InputError
from excite.precision import exact_products, rounding_of_products
from excite.randomness import random_state, set_random_state, undisturbed
from excite.trace.moments import Projection, project, project_gradient

SAME = 0.01  # relative difference between two gradients; rounding and nondeterministic kernels stay well below
ROUNDED = 0.5  # the same for a step in bfloat16, float16 or TF32, whose rounding reaches 0.17 with ResNet-20


@dataclass
class Log:
    """What was recorded so far, besides vectors. None stands for a value that is not finite."""

    step: int = 0
    step_of_epoch: int = 0
    epoch_length: int | None = None  # in steps; None: not known yet
    rate: float | None = None  # of the last step
    steps_summed: int = 0  # in the mean gradient of the epoch
    moments: list[tuple[int, float | None]] = field(default_factory=list)  # step, learning rate
    slopes: list[tuple[float, int, float | None]] = field(default_factory=list)  # slope, step, learning rate
    curvatures: list[tuple[float | None, float | None, int]] = field(default_factory=list)  # value, residual, step
    problems: dict[str, str] = field(default_factory=dict)  # by kind
    both_ends: bool | None = None  # whether .grad differs from the closure's gradient; None: not known yet


@dataclass(eq=False)
class LocalSlopes:
    """Measures the slope of sampled steps. `warn(kind, text)` receives what is wrong with the training loop."""

    model: nn.Module
    parameters: list[Tensor]
    projection: Projection
    per_epoch: int  # steps to sample
    seed: int
    log: Log
    warn: Callable[[str, str], None]
    average: Callable[[Tensor], Tensor] | None = None  # over the processes of a distributed training
    next: "_SampledStep | None" = None  # the next step, if it is sampled
    taken: "_SampledStep | None" = None  # the last step, if it was sampled, until it is measured

    def __post_init__(self) -> None:
        if isinstance(self.model, DistributedDataParallel):
            self.average = _mean_over(self.model)

    def expect_step(self) -> None:
        """Prepare for the next step: if it is sampled, its first forward and all backward passes are watched."""
        self._stop_watching()
        if self._is_sampled():
            self.next = _SampledStep(self.model, self.parameters)

    def before_step(self) -> None:
        if self.next is None:
            return
        self.next.parameters = project(self.projection, self.parameters)
        changed = self.next.is_rounded or (self.average is None and self.next.backward.gradients_changed)
        if self.log.both_ends is not False or changed:
            self.next.copies = [parameter.detach().clone() for parameter in self.parameters]

    def note_gradient(self, gradients: Sequence[Tensor | None]) -> None:
        """Remember the gradients that the step uses, if it is sampled."""
        if self.next is not None:
            self.next.gradient = project(self.projection, gradients)

    def after_step(self) -> None:
        """The optimizer has taken a step."""
        self.taken = self.next
        self.expect_step()

    def measure(self, closure: Callable[[], Tensor]) -> None:
        """Append the slope of the step just taken, if it was sampled; see `Recorder.after_step`."""
        taken, self.taken = self.taken, None
        if taken is None:
            return
        self._stop_watching()
        closure_pass = ForwardPass(self.model, self.parameters[0].device)
        try:
            before = self._gradient_before(closure, taken)
            after = self._gradient(closure, taken)
        finally:
            closure_pass.close()
        self.expect_step()
        change = (after - before).norm()
        length = (project(self.projection, self.parameters) - taken.parameters).norm()
        # Long sums lose digits of the parameters' precision. Autocast sums in float32 and rounds once per layer.
        autocast = torch.finfo(closure_pass.autocast or torch.float64).eps
        rounding = max(32 * torch.finfo(self.parameters[0].dtype).eps, 4 * autocast)
        if torch.isfinite(change) and length > 0 and change > rounding * before.norm():
            self.log.slopes.append((float(change / length), self.log.step, self.log.rate))

    def _gradient_before(self, closure: Callable[[], Tensor], taken: "_SampledStep") -> Tensor:
        """The gradient that the step used; the closure's if that is another one, or a more precise one."""
        if taken.copies is None:
            return taken.gradient
        with replaced(self.parameters, "data", taken.copies):
            expected = self._gradient(closure, taken)
        problem = other_gradient(taken.gradient, expected, ROUNDED if taken.is_rounded else SAME)
        self.log.both_ends = problem is not None
        if problem is not None:
            self.warn("other gradient", problem)
        return expected if problem is not None or taken.is_rounded else taken.gradient

    def close(self) -> None:
        """Sample no further steps."""
        self.per_epoch = 0
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self.next is not None:
            self.next.close()
        self.next = None

    def _is_sampled(self) -> bool:
        if self.per_epoch == 0:
            return False
        step, epoch = self.log.step_of_epoch, len(self.log.moments)
        if self.log.epoch_length is None:
            return step & (step + 1) == 0
        stride = max(1, self.log.epoch_length // self.per_epoch)
        phase = int(np.random.default_rng((self.seed, epoch)).integers(stride))
        index, position = divmod(step, stride)
        return position == phase and index < self.per_epoch

    def _gradient(self, closure: Callable[[], Tensor], taken: "_SampledStep") -> Tensor:
        """The closure's gradient at the current parameters, with the dropout masks of the sampled step."""

        def loss() -> Tensor:
            value = closure()
            called_backward = any(parameter.grad is not None for parameter in self.parameters)
            if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad or called_backward:
                got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise InputError(
                    "The closure passed to after_step must return the loss as a scalar tensor that has a gradient, "
                    f"without calling backward(): `def closure(): return loss_fn(model(x), y)`. It returned {got}."
                )
            return value.reshape(())

        with ExitStack() as inside:
            inside.enter_context(undisturbed(self.model, self.parameters[0].device))
            inside.enter_context(replaced(self.parameters, "grad", [None] * len(self.parameters)))
            inside.enter_context(exact_products(self.parameters[0].device))
            if isinstance(self.model, DistributedDataParallel):
                inside.enter_context(self.model.no_sync())
            if taken.forward.random is not None:
                set_random_state(taken.forward.random, self.parameters[0].device)
            gradient = project_gradient(self.projection, self.parameters, loss)
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
        self._device = parameters[0].device
        self.forward = ForwardPass(model, self._device)
        self.backward = BackwardPasses(parameters)
        self.gradient: Tensor  # that the step used
        self.parameters: Tensor  # before the step
        self.copies: list[Tensor] | None = None  # of the parameters before the step, if its gradient must be checked

    @property
    def is_rounded(self) -> bool:
        """Whether the step ran under autocast or with TF32, so that the closure's float32 gradient is more precise."""
        return self.forward.autocast is not None or rounding_of_products(self._device) > 0

    def close(self) -> None:
        self.forward.close()
        self.backward.close()


class ForwardPass:
    """Stores the random state and the autocast type at the start of the first forward pass in train mode."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self.random: dict[str, Any] | None = None
        self.autocast: torch.dtype | None = None
        # Lightning's training_step calls children, not the module. A hook inside a compiled module would recompile it.
        compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None
        modules = [model] if compiled else [model, *model.children()]
        self._hooks = [module.register_forward_pre_hook(self._note) for module in modules]

    def _note(self, module: nn.Module, _: object) -> None:
        if self.random is None and module.training and torch.is_grad_enabled():
            self.random = random_state(self._device)
            if torch.is_autocast_enabled(self._device.type):
                self.autocast = torch.get_autocast_dtype(self._device.type)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


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


@contextmanager
def replaced(
    parameters: Sequence[Tensor], attribute: Literal["data", "grad"], values: Sequence[Tensor | None]
) -> Iterator[None]:
    """Inside, this attribute of the parameters has these values; afterwards the previous ones, in the same memory."""
    previous = [getattr(parameter, attribute) for parameter in parameters]
    for parameter, value in zip(parameters, values, strict=True):
        setattr(parameter, attribute, value)
    try:
        yield
    finally:
        for parameter, value in zip(parameters, previous, strict=True):
            setattr(parameter, attribute, value)


def _mean_over(model: DistributedDataParallel) -> Callable[[Tensor], Tensor]:
    def average(vector: Tensor) -> Tensor:
        torch.distributed.all_reduce(vector, group=model.process_group)
        return vector / torch.distributed.get_world_size(model.process_group)

    return average
