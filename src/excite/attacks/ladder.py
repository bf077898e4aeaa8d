"""One attack at several radii, largest first: who withstands is done, who falls goes on from what was found."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excite.attacks.protocol import Attack, Norm
from excite.errors import InputError
from excite.quantities import pixels


@dataclass(frozen=True)
class Ladder(Attack):
    """`attack` at every radius of `radii`, which must increase; alone, as one attack, it is the one at the largest.

    >>> from excite import attacks
    >>> print(Ladder(attacks.create("pgd", eps=8 / 255, step=2 / 255), (4 / 255, 8 / 255)))
    PGD-20, L∞ ε = 8/255, step 2/255; where it succeeds also at ε = 4/255
    """

    attack: Attack
    radii: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "radii", tuple(self.radii))
        increasing = all(low < high for low, high in itertools.pairwise((*self.radii, math.inf)))
        if not (self.radii and self.radii[0] >= 0 and increasing):
            raise InputError(
                f"eps={[round(radius, 6) for radius in self.radii]} must name radii ≥ 0, each larger than the one "
                "before: an image that fell at one has fallen at all after it. Sort them and drop doubles."
            )
        object.__setattr__(self, "attack", self.attack.at(self.radii[-1]))

    @property
    def eps(self) -> float:  # type: ignore[override]
        return self.radii[-1]

    @property
    def norm(self) -> Norm | None:  # type: ignore[override]
        return self.attack.norm

    @property
    def rungs(self) -> tuple[Attack, ...]:
        return tuple(self.attack.at(radius) for radius in self.radii)

    @property
    def stages(self) -> Sequence[tuple[str, Attack]]:
        return self.attack.stages

    def passes(self, classes: int) -> float:
        return self.attack.passes(classes)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.attack(model, x, y, generator)

    def __str__(self) -> str:
        smaller = ", ".join(map(pixels, self.radii[:-1]))
        return f"{self.attack}; where it succeeds also at ε = {smaller}" if smaller else str(self.attack)


def on_ladder(attack: Attack, radii: Sequence[float]) -> Ladder:
    return Ladder(attack.attack if isinstance(attack, Ladder) else attack, tuple(radii))
