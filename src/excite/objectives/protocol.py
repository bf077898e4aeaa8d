"""What an objective is: the standard loss, the base class of adversarial ones, and how to evaluate a loss again.

The recorder compares the loss of one batch at two sets of parameters, and differentiates it twice. An attack in between
would change the loss itself. So `frozen` attacks once and keeps the perturbation.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.errors import InputError
from excite.precision import full_precision
from excite.quantities import check_number

Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (model, x, y) -> a scalar or one loss per example
Forward = Callable[[Tensor], Tensor]  # a model, or a model with other weights

TRAINING_PASSES = 3  # a forward pass, and a backward pass that costs two
EPS, STEP, STEPS = 8 / 255, 0.007, 10  # default attack during training


class NamedObjective(Protocol):
    """An objective of `OBJECTIVES`, with what the rest of the package needs to know about it."""

    @property
    def passes(self) -> int:
        """Cost of one training step per image, in forward passes."""

    @property
    def needs_pseudo_labels(self) -> bool:
        """Whether a teacher must label the second half of every batch."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, /) -> Tensor: ...


def standard_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy on clean images."""
    return cross_entropy(full_precision(model(x)), y)


@dataclass(frozen=True)
class Standard:
    """`standard_loss` as a class; it has no options."""

    passes: ClassVar[int] = TRAINING_PASSES
    needs_pseudo_labels: ClassVar[bool] = False

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return standard_loss(model, x, y)


class Adversarial(abc.ABC):
    """loss(model, x, y) = loss_at(model, x, perturb(model, x, y), y).

    `perturb` leaves modes, batch-norm statistics and `.grad` as they were. Random numbers come from `generator`, or
    from torch's global generator if that is None.
    """

    needs_pseudo_labels: ClassVar[bool] = False
    steps: int  # of the attack

    @property
    def losses(self) -> int:
        """Number of forward passes per image that a training step differentiates."""
        raise NotImplementedError

    @property
    def passes(self) -> int:
        """One gradient (two passes) per attack step, one further forward pass of the attack, and the losses."""
        return 2 * self.steps + 1 + self.losses * TRAINING_PASSES

    @abc.abstractmethod
    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Any: ...

    @abc.abstractmethod
    def loss_at(self, model: Any, x: Tensor, perturbation: Any, y: Tensor) -> Tensor: ...

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.loss_at(model, x, self.perturb(model, x, y, generator), y)


def frozen(
    objective: Objective, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None
) -> Callable[[], Tensor]:
    """Attack now, if the objective is adversarial, and return the loss at that perturbation as a closure.

    The closure depends on the model's parameters alone. The attack draws from `generator`, or from torch's global
    generator if that is None.

    ```
    closure = frozen(objective, model, x, y)
    closure().backward()
    optimizer.step()
    recorder.after_step(closure)
    ```
    """
    perturb, loss_at = getattr(objective, "perturb", None), getattr(objective, "loss_at", None)
    if perturb is not None and loss_at is not None:  # whether or not it inherits from `Adversarial`
        return partial(loss_at, model, x, perturb(model, x, y, generator), y)
    return partial(objective, model, x, y)


def check_weight(name: str, value: float, advice: str) -> None:
    """Refuse a weight that is negative or not finite."""
    check_number(name, value)
    if not 0 <= value < math.inf:
        raise InputError(f"{name}={value} must be finite and not negative. {advice}")


def follow_input(x_adv: Tensor, x: Tensor) -> Tensor:
    """`x_adv`, moving with `x` at a constant distance, so that derivatives with respect to `x` pass through it."""
    return x_adv + (x - x.detach()) if x.requires_grad else x_adv
