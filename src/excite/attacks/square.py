"""Square (Andriushchenko et al. 2020), run by its authors' package: random squares, no gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from excite.attacks.ball import Norm
from excite.attacks.packaged import NORMS, perturb
from excite.attacks.protocol import Attack, check_options, in_words


@dataclass(frozen=True)
class Square(Attack):
    """One random square at a time, kept where it helps; fooled examples leave."""

    follows_gradients: ClassVar[bool] = False

    eps: float
    norm: Norm = "linf"
    restarts: int = 1
    queries: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self.eps, self.norm, seed=self.seed, restarts=self.restarts, queries=self.queries)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, _: torch.Generator | None) -> Tensor:
        return perturb(self._prepare, model, x, y, eps=self.eps, seed=self.seed)

    def passes(self, classes: int) -> float:  # noqa: ARG002
        return self.restarts * self.queries

    def _prepare(self, model: nn.Module, classes: int) -> Callable[[Tensor, Tensor], Tensor]:  # noqa: ARG002
        from pyautoattack.square import SquareAttack

        attack = SquareAttack(
            model,
            norm=NORMS[self.norm],
            eps=self.eps,
            n_restarts=self.restarts,
            n_queries=self.queries,
            seed=self.seed,
            p_init=0.8,
            resc_schedule=False,
        )
        images: Callable[[Tensor, Tensor], Tensor] = attack.perturb
        return images

    def __str__(self) -> str:
        return f"SQUARE, {in_words(self.eps, self.norm)}"
