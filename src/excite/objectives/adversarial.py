"""What adversarial objectives share: attack first, then the loss at what the attack found."""

import abc
from collections.abc import Callable
from typing import ClassVar, Generic

import torch
from torch import Tensor, nn

from excite.objectives.protocol import TRAINING_PASSES, Perturbation

EPS = 8 / 255
STEP = 0.007
STEPS = 10

Forward = Callable[[Tensor], Tensor]  # a model, or a model with other weights


class Adversarial(abc.ABC, Generic[Perturbation]):
    """loss(model, x, y) = loss_at(model, x, perturb(model, x, y), y).

    `perturb` sees the model in eval mode and leaves modes, batch-norm statistics and `.grad` as they are. It draws
    from `generator`, or from torch's global one.
    """

    title: ClassVar[str]
    needs_pseudo_labels: ClassVar[bool] = False
    steps: int  # of the attack

    @property
    def losses(self) -> int:
        """How many forward passes of an image a step differentiates to learn from."""
        raise NotImplementedError

    @property
    def passes(self) -> int:
        """A gradient for each step of the attack, the answer it starts from or ends at, and the losses."""
        return 2 * self.steps + 1 + self.losses * TRAINING_PASSES

    @abc.abstractmethod
    def perturb(
        self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None
    ) -> Perturbation: ...

    @abc.abstractmethod
    def loss_at(self, model: nn.Module, x: Tensor, perturbation: Perturbation, y: Tensor) -> Tensor: ...

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.loss_at(model, x, self.perturb(model, x, y, generator), y)


def carried(x_adv: Tensor, x: Tensor) -> Tensor:
    """`x_adv`, its distance from `x` held: a derivative with respect to pixels, where one is asked for, reaches `x`."""
    return x_adv + (x - x.detach()) if x.requires_grad else x_adv
