"""An arm is one way to choose the first learning rate η¹ of a training, and its batch size.

To add an arm, add a line to `ARMS`. `poe@stated` is the arm `poe` with the L of the estimator preset "stated".
"""

import re
from dataclasses import dataclass, replace

from excite.errors import InputError, unknown

POE = (
    "PoE: persistency of excitation. The theorem guarantees it at rates up to 1 over the smoothness of the loss, which "
    "recorded slopes measure."
)
POE_BY_EDGE = "With L by edge, 1/L is half the largest rate that trains reliably."
OWN = ""  # the experiment's own estimator of L


@dataclass(frozen=True)
class Arm:
    """By default the baseline's rate and batch size; each optional field changes one of them."""

    name: str  # also the name of its folder in a run
    title: str
    short_title: str
    multiple: float | None = None  # η¹ = multiple / L; None if the rate does not come from L
    estimator: str | None = None  # name of the estimator whose L the arm needs; None if it needs no L
    rates: int | None = None  # η¹ is the best of this many rates; None if there is no grid search
    of_baseline: float = 1.0  # η¹ as a multiple of the baseline's rate, if it comes from neither L nor a grid
    size: int | None = None  # images per step; None for the experiment's batch size
    same_ratio: bool = False  # choose the batch size so that η/B is that of 1/L
    finds_its_rate: bool = False  # η¹ is a fifth of the baseline's rate, and training raises it from there
    control: bool = False  # the arm shows what a change other than 1/L does


ARMS: dict[str, Arm] = {
    "baseline": Arm("baseline", "baseline", "baseline"),
    "half": Arm("half", "half the bound, 0.5/L", "0.5/L", multiple=0.5, estimator=OWN),
    "poe": Arm("poe", "PoE-motivated, 1/L", "1/L", multiple=1.0, estimator=OWN),
    "beyond": Arm("beyond", "beyond the bound, 1.5/L", "1.5/L", multiple=1.5, estimator=OWN),
    "largest": Arm("largest", "largest convergent, 2/L", "2/L", multiple=2.0, estimator=OWN),
    "online": Arm("online", "rate found during training", "the rate found during training", finds_its_rate=True),
    "placebo": Arm("placebo", "placebo, 1.15 times the baseline's rate", "the placebo", of_baseline=1.15, control=True),
    "batch": Arm(
        "batch", "baseline's rate, η/B of 1/L", "the η/B control", estimator=OWN, same_ratio=True, control=True
    ),
}


def arm_named(text: str) -> Arm:
    """Return the arm that a user or a folder calls `text`.

    >>> arm_named("grid:5").title, arm_named("poe@stated").title
    ('grid search, 5 rates', 'PoE-motivated, 1/L (stated)')
    """
    base, at, preset = text.partition("@")
    arm = ARMS.get(base) or _numbered(base)
    if arm is None:
        raise unknown("arm", text, [*ARMS, "1.9/L", "poe@stated", "grid:5", "batch:128"])
    if not at:
        return arm
    if arm.multiple is None or not re.fullmatch(r"[\w-]{1,40}", preset):
        raise InputError(f'There is no arm "{text}". Write ARM@PRESET, with an arm that needs L: poe@stated.')
    return replace(
        arm,
        name=f"{arm.name}@{preset}",
        title=f"{arm.title} ({preset})",
        short_title=f"{arm.short_title} ({preset})",
        estimator=preset,
    )


def _numbered(text: str) -> Arm | None:
    """`grid:5`, `batch:128` and `1.9/L`; in the names of folders grid-5, batch-128 and 1.9-over-L."""
    if grid := re.fullmatch(r"grid[:-]([2-9]|[1-9]\d{1,5})", text):
        n_rates = int(grid[1])
        return Arm(f"grid-{n_rates}", f"grid search, {n_rates} rates", f"the grid of {n_rates} rates", rates=n_rates)
    if batch := re.fullmatch(r"batch[:-]([1-9]\d{0,5})", text):
        size = int(batch[1])
        title, short_title = f"baseline's rate, batches of {size}", f"batches of {size}"
        return Arm(f"batch-{size}", title, short_title, size=size, control=True)
    if (match := re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)(?:/|-over-)L", text)) and float(match[1]):
        multiple = float(match[1])
        title = f"{multiple:g}/L"
        return Arm(f"{multiple:g}-over-L", title, title, multiple=multiple, estimator=OWN)
    return None


def arm_names(text: str) -> tuple[str, ...]:
    """Return the names in a list such as `baseline,poe,grid:5`, without repetitions."""
    return tuple(dict.fromkeys(arm_named(part.strip()).name for part in text.split(",")))


def in_order(names: set[str]) -> list[str]:
    """Sort arms as tables show them: in the order of `ARMS`, then arms with a preset's L, then grid searches."""

    def position(name: str) -> tuple[int, str, int, str]:
        base, _, preset = name.partition("@")
        index = list(ARMS).index(base) if base in ARMS else len(ARMS)
        return (arm_named(name).rates or 0, preset, index, name)

    return sorted((name for name in names if _is_arm(name)), key=position)


def _is_arm(name: str) -> bool:
    try:
        return arm_named(name).name == name
    except InputError:
        return False
