"""FAB (Croce & Hein 2020), run by its authors' package: the nearest decision boundary, seen if it lies in the ball."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from excite.attacks.auto_pgd import MOST_TARGETS
from excite.attacks.ball import Norm
from excite.attacks.packaged import NORMS, perturb
from excite.attacks.protocol import Attack, check_options, in_words

Variant = Literal["fab", "fab-t"]


@dataclass(frozen=True)
class FAB(Attack):
    """FAB towards every class at once, or (`fab-t`) towards one likely class after another, which costs less."""

    variant: Variant
    eps: float
    norm: Norm = "linf"
    restarts: int = 1
    iterations: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self.eps, self.norm, seed=self.seed, restarts=self.restarts, iterations=self.iterations)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, _: torch.Generator | None) -> Tensor:
        return perturb(self._prepare, model, x, y, eps=self.eps, seed=self.seed)

    def passes(self, classes: int) -> float:
        per_iteration = 2 + classes if self.variant == "fab" else 3 * min(MOST_TARGETS, classes - 1)
        return self.restarts * self.iterations * per_iteration

    def _prepare(self, model: nn.Module, classes: int) -> Callable[[Tensor, Tensor], Tensor]:
        from pyautoattack.fab_pt import FABAttack_PT

        attack = FABAttack_PT(
            model,
            norm=NORMS[self.norm],
            eps=self.eps,
            n_restarts=self.restarts,
            n_iter=self.iterations,
            seed=self.seed,
            targeted=self.variant == "fab-t",
            n_target_classes=min(MOST_TARGETS, classes - 1),
        )
        images: Callable[[Tensor, Tensor], Tensor] = attack.perturb
        return images

    def __str__(self) -> str:
        return f"{self.variant.upper()}, {in_words(self.eps, self.norm)}"
