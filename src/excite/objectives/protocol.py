"""What an objective is, plain or adversarial, and how to look at one step's loss again.

An adversarial objective has two stages, an attack and a loss at what the attack found. Whoever compares the loss at two
sets of parameters, or differentiates it twice, must not attack in between: it would compare two functions. So the
perturbation is found once and held, and what is left depends on the parameters alone.
"""

import abc
import inspect
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.registry import named_options

Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (model, x, y) -> one number or one per example
Forward = Callable[[Tensor], Tensor]  # a model, or a model with other weights
Perturbation = TypeVar("Perturbation")

TRAINING_PASSES = 3  # of a forward pass: a backward pass, to the images and to the weights, does the work of two
EPS, STEP, STEPS = 8 / 255, 0.007, 10  # of an attack in training, unless others are given


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
    if "generator" in inspect.signature(objective).parameters:
        raise InputError(
            f"{_name(objective)} draws, and attacks, anew whenever it is called, so that it cannot be frozen. Pass the "
            "objective with its options set, such as excite.objectives.Trades(beta=6.0)."
        )
    return partial(objective, model, x, y)


def _name(objective: Objective) -> str:
    function = objective.func if isinstance(objective, partial) else objective
    return str(getattr(function, "__name__", function))


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
