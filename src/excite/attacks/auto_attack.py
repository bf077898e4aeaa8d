"""AutoAttack (Croce & Hein 2020): its attacks in order, with the same results as the authors' package.

Square and FAB are run by that package, pyautoattack; APGD is in `auto_pgd`.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from excite.attacks.auto_pgd import APGD
from excite.attacks.fast_model import fast_inference
from excite.attacks.geometry import Norm, project
from excite.attacks.protocol import Attack, check_inputs, check_labels, check_options, in_words, right_answers
from excite.errors import InputError
from excite.randomness import drawing_from
from excite.registry import lookup

IMAGE_DIMENSIONS = 4
SMALLEST_TILED = 5  # pixels
FAB_TARGETS = 9
Forward = Callable[[Tensor], Tensor]


class Packaged(Attack):
    """An attack that pyautoattack runs, on a fast model and with a fixed seed."""

    eps: float
    norm: Norm
    restarts: int
    seed: int

    @abc.abstractmethod
    def prepared(self, model: Forward, classes: int, **common: Any) -> Any:
        """The package's attack object; `model` takes and returns float32, as the package does."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, _: torch.Generator | None = None) -> Tensor:
        check_inputs(x, y)
        if not self.takes(x):
            raise InputError(
                f"{self} needs images of shape (N, C, H, W), for L2 and L1 at least 5 × 5; got {tuple(x.shape)}."
            )
        if len(x) == 0 or self.eps == 0:
            return x.clone()
        fast = fast_inference(model)

        def forward(images: Tensor) -> Tensor:
            logits: Tensor = fast(images.to(x.dtype))
            return logits.float()

        with drawing_from(self.seed, x.device), torch.no_grad(), fast.at_work(x.device):
            logits = fast(x[:1])
            check_labels(y, logits)
            common = {"eps": self.eps, "n_restarts": self.restarts, "seed": self.seed}
            attack = self.prepared(forward, logits.shape[1], norm=self.norm.capitalize(), **common)
            moved: Tensor = attack.perturb(x.float(), y)
        if x.dtype == torch.float32 and self.norm != "l1":  # in L1, rounding errors of many pixels add up
            return moved
        return project(moved.to(x.dtype), x, eps=self.eps, norm=self.norm)

    def takes(self, x: Tensor) -> bool:
        return x.dim() == IMAGE_DIMENSIONS


@dataclass(frozen=True)
class Square(Packaged):
    """The Square attack: change one random square at a time and keep the changes that help."""

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
        """In L2 and L1 balls the package divides images into tiles, so very small images are refused."""
        return super().takes(x) and (self.norm == "linf" or min(x.shape[2:]) >= SMALLEST_TILED)

    def prepared(self, model: Forward, classes: int, **common: Any) -> Any:  # noqa: ARG002
        from pyautoattack.square import SquareAttack

        return SquareAttack(model, **common, n_queries=self.queries, p_init=0.8, resc_schedule=False)

    def __str__(self) -> str:
        return f"SQUARE, {in_words(self.eps, self.norm)}"


@dataclass(frozen=True)
class FAB(Packaged):
    """The FAB attack, toward all classes at once or, as the cheaper `fab-t`, toward one class at a time."""

    variant: Literal["fab", "fab-t"]
    eps: float
    norm: Norm = "linf"
    restarts: int = 1
    iterations: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self.eps, self.norm, seed=self.seed, restarts=self.restarts, iterations=self.iterations)

    def passes(self, classes: int) -> float:
        per_iteration = 2 + classes if self.variant == "fab" else 3 * min(FAB_TARGETS, classes - 1)
        return self.restarts * self.iterations * per_iteration

    def prepared(self, model: Forward, classes: int, **common: Any) -> Any:
        from pyautoattack.fab_pt import FABAttack_PT

        targeted, n_targets = self.variant == "fab-t", min(FAB_TARGETS, classes - 1)
        return FABAttack_PT(model, **common, n_iter=self.iterations, targeted=targeted, n_target_classes=n_targets)

    def __str__(self) -> str:
        return f"{self.variant.upper()}, {in_words(self.eps, self.norm)}"


Member = Literal["apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"]

MEMBERS: dict[str, Callable[..., Attack]] = {
    "apgd-ce": partial(APGD, "apgd-ce"),
    "apgd-dlr": partial(APGD, "apgd-dlr"),
    "apgd-t": partial(APGD, "apgd-t"),
    "fab": partial(FAB, "fab"),
    "fab-t": partial(FAB, "fab-t"),
    "square": Square,
}

VERSIONS: dict[str, list[tuple[Member, dict[str, int]]]] = {
    "standard": [("apgd-ce", {}), ("apgd-t", {}), ("fab-t", {}), ("square", {})],
    "plus": [
        ("apgd-ce", {"restarts": 5}),
        ("apgd-dlr", {"restarts": 5}),
        ("fab", {"restarts": 5}),
        ("square", {}),
        ("apgd-t", {}),
        ("fab-t", {}),
    ],
    "rand": [("apgd-ce", {"gradients_averaged": 20}), ("apgd-dlr", {"gradients_averaged": 20})],
}


@dataclass(frozen=True)
class AutoAttack(Attack):
    """The package's `standard`, `plus` or `rand` version, or `members` of your choice.

    With fewer iterations or queries than the defaults it is a quick check that must not be reported as AutoAttack.
    """

    eps: float
    norm: Norm = "linf"
    version: str = "standard"
    members: tuple[Member, ...] | None = None
    iterations: int = 100
    queries: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        lookup("AutoAttack version", VERSIONS, self.version)
        if self.members is not None and not self.members:
            raise InputError(f"members is empty; choose from {', '.join(get_args(Member))}.")
        _ = self.stages  # raises if a member does not exist

    @property
    def stages(self) -> Sequence[tuple[str, Attack]]:
        chosen = VERSIONS[self.version] if self.members is None else [(member, {}) for member in self.members]
        stages = []
        for member, settings in chosen:
            effort = {"queries": self.queries} if member == "square" else {"iterations": self.iterations}
            if self.norm == "l1" and self.members is None and (self.version, member) == ("standard", "apgd-ce"):
                effort["restarts"] = 5
            make = lookup("AutoAttack member", MEMBERS, member)
            stages.append((member, make(eps=self.eps, norm=self.norm, seed=self.seed, **effort, **settings)))
        return stages

    def passes(self, classes: int) -> float:
        return sum(attack.passes(classes) for _, attack in self.stages)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Adversarial images where an attack succeeds, clean images where none does."""
        check_inputs(x, y)
        x_adv = x.clone()
        if len(x) == 0:
            return x_adv
        with torch.no_grad():
            logits = model(x)
        check_labels(y, logits)
        standing = right_answers(logits, y).nonzero().squeeze(1)
        for _, attack in self.stages:
            if len(standing) == 0:
                break
            moved = attack(model, x[standing], y[standing], generator)
            with torch.no_grad():
                right = right_answers(model(moved), y[standing])
            x_adv[standing[~right]] = moved[~right]
            standing = standing[right]
        return x_adv

    def __str__(self) -> str:
        chosen = self.version if self.members is None else " + ".join(self.members)
        short = "" if self.iterations >= 100 and self.queries >= 5000 else "shortened "
        return f"{short}AutoAttack ({chosen}), {in_words(self.eps, self.norm)}"
