"""AutoAttack (Croce & Hein 2020): the authors' selections of attacks in order, at the verdicts of their package."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from torch import Tensor, nn

from excite.attacks.auto_pgd import APGD
from excite.attacks.fast_model import fast_inference
from excite.attacks.packaged import FAB, Square
from excite.attacks.protocol import Attack, Cascade, Norm, in_words
from excite.errors import InputError
from excite.quantities import MODULE, check_kind, check_whole
from excite.registry import lookup, named_options, with_named_options

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


@with_named_options
@dataclass(frozen=True)
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
        return [(member, self._member(member, settings)) for member, settings in chosen]

    def _member(self, member: Member, settings: Mapping[str, int]) -> Attack:
        effort = {"queries": self.queries} if member == "square" else {"iterations": self.iterations}
        return lookup("AutoAttack member", MEMBERS, member)(
            eps=self.eps, norm=self.norm, seed=self.seed, **effort, **settings
        )

    def __str__(self) -> str:
        chosen = self.version if self.members is None else " + ".join(self.members)
        short = "" if self.iterations >= 100 and self.queries >= 5000 else "shortened "
        return f"{short}AutoAttack ({chosen}), {in_words(self.eps, self.norm)}"


@named_options
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
    check_kind("model", model, "parameters", MODULE)
    check_whole("batch_size", batch_size, least=1)
    return attack.run(fast_inference(model), x, y, None, batch_size=batch_size)
