"""Square and FAB, run by their authors' package pyautoattack, and what they need around them: a fast model, a seed."""

import abc
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from excite.attacks.fast_model import fast_inference
from excite.attacks.protocol import Attack, Norm, check_inputs, check_labels, check_options, in_words, project
from excite.errors import InputError

MOST_TARGETS = 9
IMAGES = 4  # dimensions: a row of numbers has no squares
SMALLEST_TILED = 5  # pixels
Forward = Callable[[Tensor], Tensor]
Variant = Literal["fab", "fab-t"]
NORMS: dict[Norm, str] = {"linf": "Linf", "l2": "L2"}


@contextlib.contextmanager
def alone_with_seed(seed: int, x: Tensor) -> Iterator[None]:
    """Torch's own random numbers from `seed`; afterwards they go on as if nobody had drawn."""
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        torch.manual_seed(seed)
        yield


class Packaged(Attack):
    """An attack of the package, prepared anew for every call."""

    eps: float
    norm: Norm
    seed: int

    @abc.abstractmethod
    def prepared(self, model: Forward, classes: int) -> Any:
        """The package's object for a model with so many classes, which takes and gives float32: so does the package."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, _: torch.Generator | None) -> Tensor:
        check_inputs(x, y)
        if not self.takes(x):
            raise InputError(f"{self} takes images of shape (N, C, H, W), not too small; these have {tuple(x.shape)}.")
        if len(x) == 0 or self.eps == 0:
            return x.clone()
        fast = fast_inference(model)

        def answer(images: Tensor) -> Tensor:
            logits: Tensor = fast(images.to(x.dtype))
            return logits.float()

        with alone_with_seed(self.seed, x), torch.no_grad(), fast.in_eval_mode():
            logits = fast(x[:1])
            check_labels(y, logits)
            moved: Tensor = self.prepared(answer, logits.shape[1]).perturb(x.float(), y)
        return moved if x.dtype == torch.float32 else project(moved.to(x.dtype), x, eps=self.eps, norm=self.norm)

    def takes(self, x: Tensor) -> bool:
        return x.dim() == IMAGES


@dataclass(frozen=True)
class Square(Packaged):
    """One random square at a time, kept where it helps; fooled examples leave."""

    follows_gradients: ClassVar[bool] = False

    eps: float
    norm: Norm = "linf"
    restarts: int = 1
    queries: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self.eps, self.norm, seed=self.seed, restarts=self.restarts, queries=self.queries)

    def passes(self, classes: int) -> float:  # noqa: ARG002
        return self.restarts * self.queries

    def takes(self, x: Tensor) -> bool:
        """In an L2 ball the package divides images into tiles, of which a smaller one has none."""
        return super().takes(x) and (self.norm == "linf" or min(x.shape[2:]) >= SMALLEST_TILED)

    def prepared(self, model: Forward, classes: int) -> Any:  # noqa: ARG002
        from pyautoattack.square import SquareAttack

        return SquareAttack(
            model,
            norm=NORMS[self.norm],
            eps=self.eps,
            n_restarts=self.restarts,
            n_queries=self.queries,
            seed=self.seed,
            p_init=0.8,
            resc_schedule=False,
        )

    def __str__(self) -> str:
        return f"SQUARE, {in_words(self.eps, self.norm)}"


@dataclass(frozen=True)
class FAB(Packaged):
    """FAB towards every class at once, or (`fab-t`) towards one likely class after another, which costs less."""

    variant: Variant
    eps: float
    norm: Norm = "linf"
    restarts: int = 1
    iterations: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self.eps, self.norm, seed=self.seed, restarts=self.restarts, iterations=self.iterations)

    def passes(self, classes: int) -> float:
        per_iteration = 2 + classes if self.variant == "fab" else 3 * min(MOST_TARGETS, classes - 1)
        return self.restarts * self.iterations * per_iteration

    def prepared(self, model: Forward, classes: int) -> Any:
        from pyautoattack.fab_pt import FABAttack_PT

        return FABAttack_PT(
            model,
            norm=NORMS[self.norm],
            eps=self.eps,
            n_restarts=self.restarts,
            n_iter=self.iterations,
            seed=self.seed,
            targeted=self.variant == "fab-t",
            n_target_classes=min(MOST_TARGETS, classes - 1),
        )

    def __str__(self) -> str:
        return f"{self.variant.upper()}, {in_words(self.eps, self.norm)}"
