"""SAM (sharpness-aware minimization, Foret et al. 2021): minimize the loss at the worst nearby weights.

It takes two gradients per step, so a training takes twice as long.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from excite.objectives.protocol import TRAINING_PASSES, Adversarial, check_weight, standard_loss
from excite.randomness import undisturbed

RHO = 0.05


@dataclass(frozen=True)
class SAM(Adversarial):
    """Mean cross-entropy at θ + rho · ∇l(θ) / ‖∇l(θ)‖, differentiated with respect to θ.

    The perturbation itself is not differentiated, as in the paper. Only the forward pass at the perturbed weights
    updates batch-norm statistics. If several processes share a batch, each perturbs by the gradient of its part.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, y = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    >>> bool(SAM(rho=0.1)(model, x, y) > standard_loss(model, x, y))  # for a convex loss
    True
    """

    passes: ClassVar[int] = 2 * TRAINING_PASSES

    rho: float = RHO

    def __post_init__(self) -> None:
        check_weight("rho", self.rho, "0.05 moves the weights by 0.05 in the Euclidean norm.")

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, _: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return what to add to each named weight. Nothing is random, so the generator is not used."""
        used = gradients_at(model, dict(model.named_parameters()), x, lambda: standard_loss(model, x, y))
        if not used:
            return {}
        length = torch.stack([gradient.norm() for gradient in used.values()]).norm().clamp_min(1e-12)
        return {name: self.rho * gradient / length for name, gradient in used.items()}

    def loss_at(self, model: nn.Module, x: Tensor, perturbation: dict[str, Tensor], y: Tensor) -> Tensor:
        return standard_loss(moved(model, perturbation), x, y)


def gradients_at(
    model: nn.Module, weights: Mapping[str, Tensor], x: Tensor, loss: Callable[[], Tensor]
) -> dict[str, Tensor]:
    """The gradients of a loss of `x` by name, for those `weights` that are trained and used; the model is unchanged."""
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    with undisturbed(model, x.device), torch.enable_grad():
        gradients = torch.autograd.grad(loss(), list(trained.values()), allow_unused=True) if trained else ()
    return {name: gradient for name, gradient in zip(trained, gradients, strict=True) if gradient is not None}


def moved(model: nn.Module, by: dict[str, Tensor]) -> Any:
    """Return a function that is the model with its weights moved; it is differentiable in the model's parameters."""
    return partial(functional_call, model, {name: model.get_parameter(name) + step for name, step in by.items()})
