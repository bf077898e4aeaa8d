"""Adversarial weight perturbation (Wu et al. 2020): minimise the adversarial loss at the worst weights close by.

Why AWP and not MART, as the objective beyond the paper's: AWP goes on top of any adversarial objective, so the paper's
own TRADES and PGD-AT rows can be repeated with and without it; it flattens the loss around θ, which is where a larger
learning rate is said to act too; and it became a part of most strong recipes. MART replaces the loss instead.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call

from excite.errors import InputError
from excite.objectives.protocol import EPS, STEP, STEPS, Adversarial
from excite.quantities import check_number
from excite.randomness import undisturbed
from excite.registry import build, named_options, with_named_options

GAMMA = 0.005


@named_options
def awp_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    on: str = "trades",
    gamma: float = GAMMA,
    beta: float | None = None,
    eps: float = EPS,
    step: float = STEP,
    steps: int = STEPS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The loss of `on`, an adversarial objective, at (x′, θ + v); its gradient arrives at θ. `beta` is that of TRADES.

    x′ is what the attack of `on` finds at θ. v is one step up the loss at x′, of length gamma · ‖w‖ for every trained
    weight tensor w of two dimensions or more (biases and batch-norm scales stay). The step up sees the loss as training
    does, same mode, same dropout masks, and leaves no sign of it: batch-norm statistics are updated by the forward
    passes at θ + v alone. Where several processes share a batch, each goes up along its own share.
    """
    return AWP(on, gamma, beta, eps, step, steps)(model, x, y, generator)


class WeightPerturbation(NamedTuple):
    """Adversarial images, and what is added to the weights of these names."""

    x_adv: Tensor
    weights: dict[str, Tensor]


@with_named_options
@dataclass(frozen=True)
class AWP(Adversarial[WeightPerturbation]):
    """`awp_loss` with its options set."""

    title: ClassVar[str] = "adversarial weight perturbation"

    on: str = "trades"
    gamma: float = GAMMA
    beta: float | None = None  # the customary one, where `on` has any
    eps: float = EPS
    step: float = STEP
    steps: int = STEPS

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma)
        if not 0 <= self.gamma < math.inf:
            raise InputError(
                f"gamma={self.gamma} must be finite and 0 or more; 0.005 moves each weight tensor by half a percent."
            )
        _ = self._inner

    @cached_property
    def _inner(self) -> Adversarial[Tensor]:
        from excite.objectives import OBJECTIVES  # which has a line for this one

        inner = {name: kind for name, kind in OBJECTIVES.items() if _has_images(kind)}
        options = {"eps": self.eps, "step": self.step, "steps": self.steps}
        if self.beta is not None:
            options["beta"] = self.beta
        return build("objective to perturb weights under", inner, self.on, options)

    @property
    def losses(self) -> int:
        return 2 * self._inner.losses  # once more, to find the weights

    def perturb(
        self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None
    ) -> WeightPerturbation:
        x_adv = self._inner.perturb(model, x, y, generator)
        weights = {
            name: weight for name, weight in model.named_parameters() if weight.requires_grad and weight.dim() >= 2
        }
        with undisturbed(model, x.device), torch.enable_grad():
            loss = self._inner.loss_at(model, x.detach(), x_adv, y)
            gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True) if weights else ()
        return WeightPerturbation(
            x_adv,
            {
                name: self.gamma * weight.detach().norm() * gradient / gradient.norm().clamp_min(1e-12)
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
                if gradient is not None
            },
        )

    def loss_at(self, model: nn.Module, x: Tensor, perturbation: WeightPerturbation, y: Tensor) -> Tensor:
        weights = {name: model.get_parameter(name) + by for name, by in perturbation.weights.items()}
        moved: Any = partial(functional_call, model, weights)  # the model, with other weights
        return self._inner.loss_at(moved, x, perturbation.x_adv, y)


def _has_images(kind: object) -> TypeGuard[type[Adversarial[Tensor]]]:
    """Whether what it attacks is images alone, and all of them labelled."""
    return isinstance(kind, type) and issubclass(kind, Adversarial) and kind is not AWP and not kind.needs_pseudo_labels
