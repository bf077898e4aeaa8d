"""The paper's numbers, to show beside ours; published.toml holds them and names their source."""

import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from excite.quantities import number
from excite.runs import Experiment, load

LINF = {"norm": "linf"}
PGD_20: dict[str, Any] = LINF | {"kind": "pgd", "eps": 1 / 255, "steps": 20, "loss": "cross_entropy", "restarts": 1}
WHOLE: dict[str, Any] = {"version": "standard", "members": None, "iterations": 100, "queries": 5000}
AUTOATTACK: dict[str, Any] = LINF | {"kind": "autoattack", "eps": 8 / 255} | WHOLE


class PublishedAccuracy(msgspec.Struct, frozen=True, array_like=True):
    """An accuracy in %, and its standard deviation over seeds if one is stated."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.2f}"


class PublishedArm(msgspec.Struct, frozen=True):
    clean: PublishedAccuracy
    robust: PublishedAccuracy
    logged: tuple[float, float] | None = None  # clean and robust accuracy in the released AutoAttack log


class PublishedRow(msgspec.Struct, frozen=True):
    """A row of Table 1 (PGD-20, ε = 1/255) or Table 2 (AutoAttack, ε = 8/255)."""

    table: int
    constant: float  # L
    n_maxima: int  # M
    n_points: int  # N
    epochs: int
    batch_size: int
    arms: dict[str, PublishedArm]

    @property
    def attack(self) -> str:
        return "PGD-20, ε = 1/255" if self.table == 1 else "AutoAttack, ε = 8/255"

    def measured_by(self, attack: Mapping[str, Any]) -> bool:
        """Whether the row was measured by this attack, given by its options in an experiment."""
        wanted = PGD_20 if self.table == 1 else AUTOATTACK
        same = all(attack.get(key, value) == value for key, value in wanted.items() if key != "eps")
        radius = attack["eps"]
        return same and isinstance(radius, float | str) and math.isclose(number(radius), wanted["eps"])


_DATA = tomllib.loads((resources.files("excite.report") / "published.toml").read_text(encoding="utf-8"))
PUBLISHED = msgspec.convert(_DATA["rows"], dict[str, PublishedRow])  # by experiment
FIGURE_5: dict[str, Any] = _DATA["figure-5"]


def published_row(experiment: Experiment) -> PublishedRow | None:
    """The row that an experiment of the catalogue, or its small twin, repeats.

    None if the experiment was changed to another objective, model or data set.
    """
    row = PUBLISHED.get(at_full_scale(experiment.name))
    return row if row and _subject(experiment) == _subject(load(experiment.name)) else None


def at_full_scale(name: str) -> str:
    """The name of an experiment without the "-small" of its small twin."""
    return name.removesuffix("-small")


def _subject(experiment: Experiment) -> tuple[str, str, str]:
    return experiment.data.name, experiment.model.name, experiment.objective
