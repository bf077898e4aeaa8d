"""Local slopes: at a few steps per epoch, how much the gradient of one batch changes per length of the step.

s = ‖g(θᵏ⁺¹) − g(θᵏ)‖ / ‖θᵏ⁺¹ − θᵏ‖. Both gradients are those of one loss, which a closure recomputes with the same
dropout masks. What the loop did to its own gradient, such as clipping, moves the step but does not enter the slope.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel

from excite.errors import InputError
from excite.precision import exact_products
from excite.randomness import undisturbed
from excite.trace.moments import Projection, project, project_gradient


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


@dataclass(eq=False)
class LocalSlopes:
    """Measures the slope of sampled steps."""

    model: nn.Module
    parameters: list[Tensor]
    projection: Projection
    per_epoch: int  # steps to sample
    seed: int
    log: Log
    average: Callable[[Tensor], Tensor] | None = None  # over the processes of a distributed training
    before: list[Tensor] | None = None  # the parameters before the last step, if it was sampled and is not yet measured

    def __post_init__(self) -> None:
        if isinstance(self.model, DistributedDataParallel):
            self.average = _mean_over(self.model)

    def before_step(self) -> None:
        self.before = [parameter.detach().clone() for parameter in self.parameters] if self._is_sampled() else None

    def measure(self, closure: Callable[[], Tensor]) -> None:
        """Append the slope of the step just taken, if it was sampled; see `Recorder.after_step`."""
        before, self.before = self.before, None
        if before is None:
            return
        with replaced(self.parameters, "data", before):
            gradient, _ = self._gradient(closure)
        gradient_after, precision = self._gradient(closure)
        change = (gradient_after - gradient).norm()
        length = (project(self.projection, self.parameters) - project(self.projection, before)).norm()
        # Long sums lose digits of the parameters' precision. Autocast sums in float32 and rounds once per layer.
        rounding = max(32 * torch.finfo(self.parameters[0].dtype).eps, 4 * precision)
        if torch.isfinite(change) and length > 0 and change > rounding * gradient.norm():
            self.log.slopes.append((float(change / length), self.log.step, self.log.rate))

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

    def _gradient(self, closure: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """The closure's gradient at the current parameters, and the relative rounding of what autocast rounded."""
        roundings = [0.0]

        def note(tensor: Tensor) -> Tensor:
            if tensor.dtype in (torch.bfloat16, torch.float16):
                roundings.append(torch.finfo(tensor.dtype).eps)
            return tensor

        def loss() -> Tensor:
            with saved_tensors_hooks(note, lambda tensor: tensor):
                value = closure()
            called_backward = any(parameter.grad is not None for parameter in self.parameters)
            if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad or called_backward:
                got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise InputError(
                    "The closure passed to after_step must return the loss as a scalar tensor that has a gradient, "
                    f"without calling backward(): `def closure(): return loss_fn(model(x), y)`. It returned {got}."
                )
            return value.reshape(())

        device = self.parameters[0].device
        with ExitStack() as inside:
            inside.enter_context(undisturbed(self.model, device))
            inside.enter_context(replaced(self.parameters, "grad", [None] * len(self.parameters)))
            inside.enter_context(exact_products(device))
            if isinstance(self.model, DistributedDataParallel):
                inside.enter_context(self.model.no_sync())
            gradient = project_gradient(self.projection, self.parameters, loss)
        return gradient if self.average is None else self.average(gradient), max(roundings)


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
