"""Adversarial weight perturbation (AWP, Wu et al. 2020): minimize the adversarial loss at the worst nearby weights.

AWP works on top of any adversarial objective, so the paper's TRADES and PGD-AT experiments can be repeated with and
without it.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call

from excite.objectives.protocol import EPS, STEP, STEPS, Adversarial, check_weight
from excite.randomness import undisturbed
from excite.registry import build

GAMMA = 0.005


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
    """Loss of the adversarial objective `on` at (x′, θ + v), differentiated with respect to θ.

    x′ is the adversarial example that `on` finds at θ. v is one step up the gradient of the loss at x′. It moves every
    trained weight tensor w with two or more dimensions by gamma · ‖w‖; biases and batch-norm scales are not moved. The
    step up uses the same mode and dropout masks as training. Only the forward passes at θ + v update batch-norm
    statistics. If several processes share a batch, each computes v from its part. `beta` is passed to TRADES.
    """
    return AWP(on, gamma, beta, eps, step, steps)(model, x, y, generator)


class WeightPerturbation(NamedTuple):
    """Adversarial images, and what to add to each named weight."""

    x_adv: Tensor
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class AWP(Adversarial[WeightPerturbation]):
    """`awp_loss` with fixed options."""

    title: ClassVar[str] = "adversarial weight perturbation"

    on: str = "trades"
    gamma: float = GAMMA
    beta: float | None = None  # None: the default of `on`
    eps: float = EPS
    step: float = STEP
    steps: int = STEPS

    def __post_init__(self) -> None:
        check_weight("gamma", self.gamma, "0.005 moves each weight tensor by half a percent.")
        _ = self._inner  # checks `on` and its options

    @cached_property
    def _inner(self) -> Adversarial[Tensor]:
        from excite.objectives import OBJECTIVES  # imported here because it lists AWP too

        inner = {name: kind for name, kind in OBJECTIVES.items() if _perturbs_images(kind)}
        options = {"eps": self.eps, "step": self.step, "steps": self.steps}
        if self.beta is not None:
            options["beta"] = self.beta
        return build("objective to perturb weights under", inner, self.on, options)

    @property
    def losses(self) -> int:
        return 2 * self._inner.losses  # the step up needs each loss once more

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
        moved: Any = partial(functional_call, model, weights)  # the model with other weights
        return self._inner.loss_at(moved, x, perturbation.x_adv, y)


def _perturbs_images(kind: object) -> TypeGuard[type[Adversarial[Tensor]]]:
    """Whether it perturbs images only, and needs no pseudo-labels."""
    return isinstance(kind, type) and issubclass(kind, Adversarial) and kind is not AWP and not kind.needs_pseudo_labels
