"""Square and FAB, run by their authors' package pyautoattack, and what they need around them: a fast model, a seed."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from excite.attacks.fast_model import FastModel, fast_inference
from excite.attacks.protocol import Attack, Norm, check_inputs, check_options, in_words
from excite.errors import InputError

MOST_TARGETS = 9
Variant = Literal["fab", "fab-t"]
NORMS: dict[Norm, str] = {"linf": "Linf", "l2": "L2"}


def perturb(
    prepare: Callable[[FastModel, int], Callable[[Tensor, Tensor], Tensor]],
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    seed: int,
) -> Tensor:
    """The images of the attack that `prepare` makes for a model with so many classes."""
    check_inputs(x, y)
    if x.dim() != 4:
        raise InputError(f"AutoAttack takes images of shape (N, C, H, W); these have {tuple(x.shape)}.")
    if len(x) == 0 or eps == 0:
        return x.clone()
    model = fast_inference(model)
    with alone_with_seed(seed, x), torch.no_grad():
        return prepare(model, model(x[:1]).shape[1])(x, y)


@contextlib.contextmanager
def alone_with_seed(seed: int, x: Tensor) -> Iterator[None]:
    """Torch's own random numbers from `seed`; afterwards they go on as if nobody had drawn."""
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        torch.manual_seed(seed)
        yield


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
