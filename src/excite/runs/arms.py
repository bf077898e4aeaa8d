"""An arm is a way to choose the first rate η¹: the baseline's own, a multiple of 1/L, or the best of a grid."""

import re
from dataclasses import dataclass

from excite.errors import InputError, unknown


@dataclass(frozen=True)
class Arm:
    name: str  # also its folder in a run
    title: str
    multiple: float | None = None  # of 1/L
    rates: int | None = None  # that a grid search tries


ARMS = {
    arm.name: arm
    for arm in (
        Arm("baseline", "baseline"),
        Arm("poe", "PoE-motivated, 1/L", multiple=1.0),
        Arm("largest", "largest convergent, 2/L", multiple=2.0),
    )
}


def arm_named(text: str) -> Arm:
    """The arm that a person or a folder calls `text`.

    >>> arm_named("grid:5")
    Arm(name='grid-5', title='grid search, 5 rates', multiple=None, rates=5)
    """
    if grid := re.fullmatch(r"grid[:-]([1-9]\d*)", text):
        rates = int(grid[1])
        if rates == 1:
            raise InputError("A grid of one rate is no search; try at least two: grid:2.")
        return Arm(f"grid-{rates}", f"grid search, {rates} rates", rates=rates)
    if text not in ARMS:
        raise unknown("arm", text, [*ARMS, "grid:5"])
    return ARMS[text]


def arm_names(text: str) -> tuple[str, ...]:
    """The names in a list such as `baseline,poe,grid:5`, each once."""
    return tuple(dict.fromkeys(arm_named(part.strip()).name for part in text.split(",")))
