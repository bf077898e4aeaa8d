"""The smallest perturbation that fools a model: FMN, the fast minimum-norm attack (Pintor et al. 2021).

It follows the gradient of the margin inside a ball around the image. The ball shrinks where the model is fooled and
grows where it is not, so the image ends near the closest point of the decision boundary.
"""

import dataclasses
import math

import torch
from torch import Tensor, nn

from excite.attacks.fast_model import fast_inference
from excite.attacks.geometry import ORDERS, TINY, Norm, distance, length, p_norm, per_image, project
from excite.attacks.projected_gradient import loss_and_gradient, margin
from excite.attacks.protocol import Attack, check_inputs, check_labels, check_options, in_words, right_answers
from excite.quantities import MODULE, check_kind

SHRINK, LAST_SHRINK = 0.05, 0.001  # share by which the ball changes, at the first and the last step
DUAL: dict[Norm, float] = {"linf": 1, "l2": 2, "l1": math.inf}


def fmn(model: nn.Module, x: Tensor, y: Tensor, *, norm: Norm = "linf", steps: int = 100) -> tuple[Tensor, Tensor]:
    """Find, for each image, the nearest misclassified image in L∞, L2 or L1.

    Args:
        model: returns logits for images in [0, 1]; it is attacked in eval mode and left as it was.
        x: images in [0, 1].
        y: class numbers.
        norm: in which the perturbation is small.
        steps: gradients to follow.

    Returns:
        The nearest images, and their distances: 0 if an image is wrong without an attack; ∞ if none was found.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    >>> _ = model[1].weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))  # equal answers where x₁ = x₂
    >>> nearest, distances = fmn(model, torch.tensor([[0.6, 0.4]]), torch.tensor([0]), norm="l2")
    >>> round(float(distances), 3)  # 0.2 / √2
    0.141
    """
    check_options(0.0, norm, steps=steps)
    check_kind("model", model, "parameters", MODULE)
    check_inputs(x, y)
    x = x.detach()
    images, nearest = x.clone(), x.new_full((len(x),), torch.inf)
    if len(x) == 0:
        return images, nearest.double()
    fast = fast_inference(model)
    with torch.no_grad():
        check_labels(y, fast(x[:1]))
    x_adv, eps = x, torch.zeros_like(nearest)
    for i in range(steps + 1):
        annealed = (1 + math.cos(math.pi * i / steps)) / 2  # from 1 to 0
        logits, loss, gradient = loss_and_gradient(fast, x_adv, y, margin, last=i == steps)
        fooled, moved = ~right_answers(logits, y), p_norm(x_adv - x, ORDERS[norm])
        better = fooled & (moved < nearest)
        images = torch.where(per_image(better, x), x_adv, images)
        nearest = torch.where(better, moved, nearest)
        if gradient is None:
            break
        change = LAST_SHRINK + (SHRINK - LAST_SHRINK) * annealed
        to_boundary = loss.abs() / p_norm(gradient, DUAL[norm]).clamp_min(TINY)
        wider = torch.where(nearest.isfinite(), eps, torch.maximum(eps, moved + to_boundary)) * (1 + change)
        eps = torch.where(fooled, torch.minimum(eps * (1 - change), nearest), wider)
        direction = gradient / length(gradient).clamp_min(TINY)
        ahead = x_adv + (0.01 + 0.99 * annealed) * direction
        x_adv = project(ahead, x, eps=per_image(eps, x), norm=norm)
    return images, torch.where(nearest.isfinite().cpu(), distance(images, x, norm=norm), torch.inf)


@dataclasses.dataclass(frozen=True)
class FMN(Attack):
    """`fmn` for evaluations: the images that it misclassifies within `eps`. A curve takes no more than one radius."""

    eps: float
    norm: Norm = "linf"
    steps: int = 100

    def __post_init__(self) -> None:
        check_options(self.eps, self.norm, steps=self.steps)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, _: torch.Generator | None = None) -> Tensor:
        images, distances = fmn(model, x, y, norm=self.norm, steps=self.steps)
        return torch.where(per_image((distances <= self.eps).to(x.device), x), images, x)

    def go_on(self, _: nn.Module, x: Tensor, *_nothing_nearer: object) -> Tensor:
        return x.clone()

    def passes(self, classes: int) -> float:  # noqa: ARG002
        return 2 * self.steps + 1

    def __str__(self) -> str:
        return f"FMN-{self.steps}, {in_words(self.eps, self.norm)}"
