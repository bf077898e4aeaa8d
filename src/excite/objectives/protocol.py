"""Look at one step's loss again: the perturbation is found once and held, what is left depends on the parameters alone.

An adversarial objective has two stages, an attack and a loss at what the attack found. Whoever compares the loss at two
sets of parameters, or differentiates it twice, must not attack in between: it would compare two functions.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (model, x, y) -> one number or one per example

Perturbation = TypeVar("Perturbation")


@runtime_checkable
class TwoStage(Protocol[Perturbation]):
    """An objective whose loss is `loss_at` what `perturb` finds: adversarial images, and whatever else it moves."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None, /) -> Perturbation: ...

    def loss_at(self, model: nn.Module, x: Tensor, perturbation: Perturbation, y: Tensor, /) -> Tensor: ...


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
