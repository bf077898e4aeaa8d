"""An arm is a way to choose the rate η¹: the baseline's, a multiple of 1/L, the best of a grid, its own, a control.

To add one: a line in `ARMS`. `poe@stated` is an arm with another L than the experiment's: that of its preset "stated".
"""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from excite.errors import InputError, unknown

if TYPE_CHECKING:
    from excite.lipschitz.protocol import LipschitzEstimate

POE = (
    "PoE: persistency of excitation. The theorem promises it at rates up to 1 over the smoothness of the loss, which "
    "recorded slopes measure; 1/L here is half the largest rate that trains reliably."
)
OWN = ""  # the experiment's own way to estimate L


class KnownRates(Protocol):
    """What a run has found out by the time an arm needs its rate."""

    def baseline(self) -> float: ...
    def estimate(self, estimator: str) -> "LipschitzEstimate": ...
    def best_of_grid(self, arm: str) -> float: ...


@dataclass(frozen=True)
class Arm:
    """The baseline's own rate; other ways derive from it and say what has to be found out first."""

    name: str  # also its folder in a run
    title: str
    short_title: str

    @property
    def estimator(self) -> str | None:
        """Whose L has to be known first, if any."""
        return None

    @property
    def multiple(self) -> float | None:
        """Of 1/L, where it is one."""
        return None

    @property
    def rates(self) -> int | None:
        """How many rates have to be tried first, if any."""
        return None

    @property
    def size(self) -> int | None:
        """The images per step that its name says, if any."""
        return None

    @property
    def finds_its_rate(self) -> bool:
        """Whether it does so during its own training."""
        return False

    @property
    def control(self) -> bool:
        """Whether it is there to show what something else than 1/L does."""
        return False

    def by_estimator(self, preset: str) -> "Arm | None":  # noqa: ARG002
        """The same arm with the L of a preset, where it is one that rests on L."""
        return None

    def first_rate(self, known: KnownRates) -> float:
        return known.baseline()

    def batch_size(self, own: int, known: KnownRates) -> int:  # noqa: ARG002
        """Images per step, where the experiment has its `own` number."""
        return own


@dataclass(frozen=True)
class Online(Arm):
    """η¹ is a fifth of the baseline's rate; the training climbs from there and settles at its own 1/L."""

    @property
    def finds_its_rate(self) -> bool:
        return True

    def first_rate(self, known: KnownRates) -> float:
        return known.baseline() / 5


@dataclass(frozen=True)
class MultipleOfInverse(Arm):
    """η¹ = times / L."""

    times: float
    by: str = OWN

    @property
    def multiple(self) -> float | None:
        return self.times

    @property
    def estimator(self) -> str | None:
        return self.by

    def by_estimator(self, preset: str) -> Arm | None:
        return replace(
            self,
            name=f"{self.name}@{preset}",
            title=f"{self.title} ({preset})",
            short_title=f"{self.short_title} ({preset})",
            by=preset,
        )

    def first_rate(self, known: KnownRates) -> float:
        return known.estimate(self.by).learning_rate(self.times)


@dataclass(frozen=True)
class BestOfGrid(Arm):
    """η¹ is the best of `tried` rates around the baseline's."""

    tried: int

    @property
    def rates(self) -> int | None:
        return self.tried

    def first_rate(self, known: KnownRates) -> float:
        return known.best_of_grid(self.name)


@dataclass(frozen=True)
class Placebo(Arm):
    """η¹ as near the baseline's as makes no difference: what luck alone does."""

    times: float

    @property
    def control(self) -> bool:
        return True

    def first_rate(self, known: KnownRates) -> float:
        return self.times * known.baseline()


@dataclass(frozen=True)
class SmallerBatch(Arm):
    """The baseline's rate in batches of `size`, or of the size that has the η/B of 1/L: what η/B alone does."""

    size: int | None = None

    @property
    def control(self) -> bool:
        return True

    @property
    def estimator(self) -> str | None:
        return OWN if self.size is None else None

    def batch_size(self, own: int, known: KnownRates) -> int:
        return self.size or max(1, round(own * known.baseline() / known.estimate(OWN).learning_rate(1.0)))


ARMS: dict[str, Arm] = {
    "baseline": Arm("baseline", "baseline", "baseline"),
    "half": MultipleOfInverse("half", "half the bound, 0.5/L", "0.5/L", times=0.5),
    "poe": MultipleOfInverse("poe", "PoE-motivated, 1/L", "1/L", times=1.0),
    "beyond": MultipleOfInverse("beyond", "beyond the bound, 1.5/L", "1.5/L", times=1.5),
    "largest": MultipleOfInverse("largest", "largest convergent, 2/L", "2/L", times=2.0),
    "online": Online("online", "rate found on the way", "the rate found on the way"),
    "placebo": Placebo("placebo", "placebo, 1.15 times the baseline's rate", "the placebo", times=1.15),
    "batch": SmallerBatch("batch", "baseline's rate, η/B of 1/L", "the η/B control"),
}


def arm_named(text: str) -> Arm:
    """The arm that a person or a folder calls `text`.

    >>> arm_named("grid:5").title, arm_named("poe@stated").title
    ('grid search, 5 rates', 'PoE-motivated, 1/L (stated)')
    """
    base, at, by = text.partition("@")
    arm = ARMS.get(base) or _numbered(base)
    if arm is None:
        raise unknown("arm", text, [*ARMS, "1.9/L", "poe@stated", "grid:5", "batch:128"])
    if not at:
        return arm
    preset = arm.by_estimator(by) if re.fullmatch(r"[\w-]{1,40}", by) else None
    if preset is None:
        raise InputError(f'"{text}" is no arm: @ follows an arm that needs L, and a preset\'s name: poe@stated.')
    return preset


def _numbered(text: str) -> Arm | None:
    """`grid:5`, `batch:128` and `1.9/L`, which in a folder's name are grid-5, batch-128 and 1.9-over-L."""
    if grid := re.fullmatch(r"grid[:-]([1-9]\d{0,5})", text):
        rates = int(grid[1])
        if rates == 1:
            raise InputError("A grid of one rate is no search; try at least two: grid:2.")
        return BestOfGrid(f"grid-{rates}", f"grid search, {rates} rates", f"the grid of {rates} rates", tried=rates)
    if batch := re.fullmatch(r"batch[:-]([1-9]\d{0,5})", text):
        size = int(batch[1])
        return SmallerBatch(f"batch-{size}", f"baseline's rate, batches of {size}", f"batches of {size}", size=size)
    if (multiple := re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)(?:/|-over-)L", text)) and float(multiple[1]):
        times = float(multiple[1])
        return MultipleOfInverse(f"{times:g}-over-L", f"{times:g}/L", f"{times:g}/L", times=times)
    return None


def arm_names(text: str) -> tuple[str, ...]:
    """The names in a list such as `baseline,poe,grid:5`, each once."""
    return tuple(dict.fromkeys(arm_named(part.strip()).name for part in text.split(",")))


def in_order(names: set[str]) -> list[str]:
    """As tables show them: the registry's order, the same arms with another L after them, grid searches last."""

    def place(name: str) -> tuple[int, str, int, str]:
        base, _, by = name.partition("@")
        place_of_its_kind = list(ARMS).index(base) if base in ARMS else len(ARMS)
        return (arm_named(name).rates or 0, by, place_of_its_kind, name)

    return sorted((name for name in names if _is_arm(name)), key=place)


def _is_arm(name: str) -> bool:
    try:
        return arm_named(name).name == name
    except InputError:
        return False
