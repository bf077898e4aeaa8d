"""N-FGSM (de Jorge et al. 2022): adversarial training with a single attack step from a noisy image.

It takes a quarter of the time of PGD adversarial training with ten steps. Single-step training can overfit
catastrophically: the network learns to withstand one step and nothing else. `watch` measures both after every epoch.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from excite.attacks.fast_model import FastModel
from excite.attacks.geometry import random_point
from excite.attacks.projected_gradient import PGD, climb, cross_entropy, loss_and_gradient
from excite.attacks.protocol import right_answers
from excite.objectives.adversarial import ImageAttack
from excite.objectives.protocol import TRAINING_PASSES, check_weight
from excite.randomness import device_of

NOISE = 2.0  # k in the paper
WATCHED_BY = 10  # steps of PGD


@dataclass(frozen=True)
class NFGSM(ImageAttack):
    """Cross-entropy at x′ = x + u + eps · sign ∇ₓ l(x + u), with u uniform in [−noise · eps, noise · eps].

    x′ is not projected onto the ball, so it may be (noise + 1) · eps away from x. It is clipped to [0, 1], like x + u.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, y = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    >>> bool(NFGSM(noise=0.0)(model, x, y) > cross_entropy(model(x), y).mean())
    True
    """

    passes: ClassVar[int] = 2 + TRAINING_PASSES  # the gradient of the single step

    noise: float = NOISE

    def __post_init__(self) -> None:
        _ = self._watching  # checks eps
        check_weight("noise", self.noise, "The paper uses 2.")

    @property
    def _watching(self) -> PGD:
        return PGD(self.eps, steps=WATCHED_BY)

    def _climb(self, model: FastModel, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        noisy = random_point(x.detach(), eps=self.noise * self.eps, norm="linf", generator=generator)
        _, _, gradient = loss_and_gradient(model, noisy, y, cross_entropy, last=False)
        return noisy if gradient is None else (noisy + self.eps * gradient.sign()).clamp_(0.0, 1.0)

    def watch(self, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
        """Accuracy after the single step and after PGD-10, both in the ball; the model is left as it was."""
        x, y = x.to(device_of(model)), y.to(device_of(model))
        fast, step = self._fast(model, x), PGD(self.eps, self.eps, 1, keep="last")
        points = {
            "single_step_accuracy": climb(step, fast, x, y),
            "pgd_accuracy": climb(self._watching, fast, x, y, early_stop=True),
        }
        with torch.no_grad():
            return {name: float(right_answers(fast(point), y).float().mean()) for name, point in points.items()}
