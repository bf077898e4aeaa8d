"""Look at one step's loss again: the perturbation is found once and held, what is left depends on the parameters alone.

An adversarial objective has two stages, an attack and a loss at what the attack found. Whoever compares the loss at two
sets of parameters, or differentiates it twice, must not attack in between: it would compare two functions.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from excite.registry import named_options

Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (model, x, y) -> one number or one per example

TRAINING_PASSES = 3  # of a forward pass: a backward pass, to the images and to the weights, does the work of two

Perturbation = TypeVar("Perturbation")


class NamedObjective(Protocol):
    """What `OBJECTIVES` makes: an objective that says what others need to know of it."""

    @property
    def title(self) -> str: ...

    @property
    def passes(self) -> int:
        """The work of one step, per image, in forward passes."""
        ...

    @property
    def needs_pseudo_labels(self) -> bool:
        """Whether the second half of every batch must be labelled by a teacher."""
        ...

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, /) -> Tensor: ...


@runtime_checkable
class TwoStage(Protocol[Perturbation]):
    """An objective whose loss is `loss_at` what `perturb` finds: adversarial images, and whatever else it moves."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None, /) -> Perturbation: ...

    def loss_at(self, model: nn.Module, x: Tensor, perturbation: Perturbation, y: Tensor, /) -> Tensor: ...


@named_options
def frozen(
    objective: Objective, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None
) -> Callable[[], Tensor]:
    """The loss on (x, y) as a function of the model's parameters alone; an attack, where there is one, runs now.

    The attack draws from `generator`; without one from torch's global generator.

    ```
    closure = frozen(objective, model, x, y)
    closure().backward()
    optimizer.step()
    recorder.after_step(closure)
    ```
    """
    attacking: object = objective
    if isinstance(attacking, TwoStage):
        return partial(attacking.loss_at, model, x, attacking.perturb(model, x, y, generator), y)
    return partial(objective, model, x, y)
