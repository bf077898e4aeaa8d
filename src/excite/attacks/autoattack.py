"""AutoAttack, as its authors' package `pyautoattack` runs it: same attacks, same seeds, same verdicts, faster model."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from excite.attacks.ball import Norm, check_norm
from excite.attacks.fast_model import fast_inference
from excite.attacks.protocol import Attack, AttackWarning, Cascade, check_inputs, pixels
from excite.errors import InputError, unknown
from excite.registry import lookup

Member = Literal["apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"]


@dataclasses.dataclass(frozen=True)
class AutoAttackMember:
    """One attack of the package. Every batch starts from the same seed, as in the package itself."""

    member: Member
    eps: float
    norm: Norm = "linf"
    restarts: int = 1
    iterations: int = 100  # of APGD and FAB
    queries: int = 5000  # of Square
    gradients_averaged: int = 1  # expectation over transformation, for randomised defences
    seed: int = 0

    def __post_init__(self) -> None:
        if self.member not in get_args(Member):
            raise unknown("AutoAttack member", self.member, get_args(Member))
        check_norm(self.norm)
        if self.eps < 0:
            raise InputError(f"eps={self.eps:g} is no radius; pass eps ≥ 0.")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, _: torch.Generator | None) -> Tensor:
        check_inputs(x, y)
        if x.dim() != 4:
            raise InputError(f"AutoAttack takes images of shape (N, C, H, W); these have {tuple(x.shape)}.")
        if len(x) == 0 or self.eps == 0:
            return x.clone()
        model = fast_inference(model)
        with torch.no_grad():
            classes = model(x[:1]).shape[1]
        member = _possible(self.member, classes)
        if member is None:
            return x.clone()
        devices = [x.device] if x.is_cuda else []
        with torch.random.fork_rng(devices), torch.no_grad():
            x_adv: Tensor = self._perturb(member, model, min(9, classes - 1))(x, y)
        return x_adv

    def _perturb(self, member: Member, model: nn.Module, targets: int) -> Callable[[Tensor, Tensor], Tensor]:
        from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
        from pyautoattack.fab_pt import FABAttack_PT
        from pyautoattack.square import SquareAttack

        shared = {
            "eps": self.eps,
            "norm": {"linf": "Linf", "l2": "L2"}[self.norm],
            "n_restarts": self.restarts,
            "seed": self.seed,
        }
        apgd = {**shared, "n_iter": self.iterations, "eot_iter": self.gradients_averaged, "logger": _Listener()}
        match member:
            case "apgd-ce":
                attack = APGDAttack(model, loss="ce", **apgd)
            case "apgd-dlr":
                attack = APGDAttack(model, loss="dlr", **apgd)
            case "apgd-t":
                attack = APGDAttack_targeted(model, n_target_classes=targets, **apgd)
            case "fab":
                attack = FABAttack_PT(model, n_iter=self.iterations, **shared)
            case "fab-t":
                attack = FABAttack_PT(model, targeted=True, n_target_classes=targets, n_iter=self.iterations, **shared)
            case "square":
                attack = SquareAttack(model, n_queries=self.queries, p_init=0.8, resc_schedule=False, **shared)
        perturb: Callable[[Tensor, Tensor], Tensor] = attack.perturb
        return perturb

    def __str__(self) -> str:
        return f"{self.member.upper()}, {'L∞' if self.norm == 'linf' else 'L2'} ε = {pixels(self.eps)}"


def _possible(member: Member, classes: int) -> Member | None:
    """The DLR loss needs three classes, its targeted form four: with fewer, the nearest attack that exists."""
    if member in ("apgd-dlr", "apgd-t") and classes < 3:
        warnings.warn(AttackWarning(f"{member} needs 3 classes, the model has {classes}: left out."), stacklevel=3)
        return None
    if member == "apgd-t" and classes < 4:
        message = f"apgd-t needs 4 classes, the model has {classes}: apgd-dlr ran in its place."
        warnings.warn(AttackWarning(message), stacklevel=3)
        return "apgd-dlr"
    return member


class _Listener:
    """Stands in for the package's logger: what it warns of becomes an `AttackWarning`."""

    def warning(self, message: str) -> None:
        warnings.warn(AttackWarning(message.partition(" See ")[0]), stacklevel=4)


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


@dataclasses.dataclass(frozen=True)
class AutoAttack(Cascade):
    """The package's `standard`, `plus` or `rand` selection, or members of one's own choice, once each.

    With fewer iterations or queries than by default it is a quick look, and must not be called AutoAttack in a table.
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
            raise InputError(f"An empty list of members attacks nothing; choose from {', '.join(get_args(Member))}.")
        _ = self.stages  # refuses members that do not exist

    @property
    def stages(self) -> list[tuple[str, Attack]]:
        chosen = VERSIONS[self.version] if self.members is None else [(member, {}) for member in self.members]
        shared = {"iterations": self.iterations, "queries": self.queries, "seed": self.seed}
        return [
            (member, AutoAttackMember(member, self.eps, self.norm, **{**shared, **settings}))
            for member, settings in chosen
        ]

    def __str__(self) -> str:
        chosen = self.version if self.members is None else " + ".join(self.members)
        short = "" if self.iterations >= 100 and self.queries >= 5000 else "shortened "
        return f"{short}AutoAttack ({chosen}), {'L∞' if self.norm == 'linf' else 'L2'} ε = {pixels(self.eps)}"


def autoattack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    norm: Norm = "linf",
    version: str = "standard",
    members: tuple[Member, ...] | None = None,
    seed: int = 0,
    batch_size: int = 250,
) -> Tensor:
    """Adversarial images where an attack succeeds, the clean image where none does.

    The batches are those of the package: each attack meets the survivors of the attacks before, regrouped.
    """
    attack = AutoAttack(eps, norm, version, members, seed=seed)
    return attack.run(fast_inference(model), x, y, None, batch_size=batch_size)
