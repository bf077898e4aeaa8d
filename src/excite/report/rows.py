"""Tidy rows, one per experiment, arm and seed; how runs are grouped and titled; and the paper's numbers."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby, pairwise
from statistics import fmean
from typing import Any

import msgspec

from excite.errors import InputError
from excite.evaluation import Accuracy, Evaluation
from excite.evaluation.result import Curve
from excite.quantities import number
from excite.runs import Experiment, load
from excite.runs.experiment import STUDY_MAY_VARY
from excite.runs.folder import ArmFolder, RunFolder, Weights

BASELINE, CLEAN = "baseline", "clean"

# The attacks of the paper's Tables 1 and 2
LINF = {"norm": "linf"}
PGD_20: dict[str, Any] = LINF | {"kind": "pgd", "eps": 1 / 255, "steps": 20, "loss": "cross_entropy", "restarts": 1}
WHOLE: dict[str, Any] = {"version": "standard", "members": None, "iterations": 100, "queries": 5000}
AUTOATTACK: dict[str, Any] = LINF | {"kind": "autoattack", "eps": 8 / 255} | WHOLE


@dataclass(frozen=True, eq=False)
class Row:
    """One arm of one experiment, trained with one seed."""

    runs: tuple[RunFolder, ...]  # of the same experiment, one per seed
    setting: str  # what sets the experiment apart from the others in the report
    run: RunFolder
    arm: ArmFolder

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def experiment(self) -> Experiment:
        return self.run.experiment

    def evaluation(self, weights: Weights = "last") -> Evaluation | None:
        return self.arm.of(weights).evaluation

    def accuracy(self, images: str, weights: Weights = "last") -> Accuracy | None:
        """The accuracy on "clean" test images or under an attack."""
        evaluation = self.evaluation(weights)
        if evaluation is None:
            return None
        return evaluation.clean if images == CLEAN else evaluation.robust.get(images)

    @property
    def curves(self) -> Mapping[str, Curve]:
        """Accuracy at several radii, for each attack that ran at several."""
        return self.arm.evaluation.curves if self.arm.evaluation else {}

    @property
    def premise_met(self) -> bool | None:
        """Whether every recorded slope is at most 1/η, as the theorem requires; None if no slope was recorded."""
        slope = self.arm.certified.largest_slope if self.arm.certified else None
        return None if slope is None else slope <= 1 / self.arm.rate

    @property
    def batch_size(self) -> int:
        return self.arm.outcome.batch_size or self.experiment.training.batch_size


def tidy(runs: Iterable[RunFolder]) -> list[Row]:
    """The rows of all runs, ordered by experiment, arm and seed."""
    groups = by_seed(runs)
    return [
        Row(group, setting, run, arm)
        for group, setting in zip(groups, apart([group[0].experiment for group in groups]), strict=True)
        for name in dict.fromkeys(arm.name for run in group for arm in run.arms)
        for run in group
        for arm in run.arms
        if arm.name == name
    ]


def by_experiment(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each experiment, over all its seeds."""
    return [list(group) for _, group in groupby(rows, key=lambda row: row.runs)]


def by_arm(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each arm, over all seeds of the experiment."""
    arms: dict[str, list[Row]] = {}
    for row in rows:
        arms.setdefault(row.name, []).append(row)
    return arms


def images_of(rows: Iterable[Row]) -> list[str]:
    """The sets of images that some row was tested on: "clean", and the name of each attack."""
    evaluations = (evaluation for row in rows if (evaluation := row.evaluation()))
    return list(dict.fromkeys([CLEAN, *(name for evaluation in evaluations for name in evaluation.attacks)]))


def train_accuracy(rows: Iterable[Row]) -> float | None:
    """The mean share of the first training images that are classified correctly at the end, if it is known."""
    known = [share for row in rows if (share := row.arm.outcome.train_accuracy) is not None]
    return fmean(known) if known else None


def arm_title(arms: Sequence[ArmFolder]) -> str:
    """The title of one arm over several seeds: if a 2/L training diverged, it is not called "largest convergent"."""
    return arms[0].short_title if any(arm.problem for arm in arms) else arms[0].title


def arm_titles(runs: Sequence[RunFolder]) -> dict[str, str]:
    """The title of every arm of the runs, by its name."""
    arms = [arm for run in runs for arm in run.arms]
    names = dict.fromkeys(arm.name for arm in arms)
    return {name: arm_title([arm for arm in arms if arm.name == name]) for name in names}


def by_seed(runs: Iterable[RunFolder]) -> list[tuple[RunFolder, ...]]:
    """Group runs of the same experiment, in the order given; inside a group, sort by seed."""
    groups = [sorted(group, key=lambda run: run.experiment.seed) for group in _grouped(runs, STUDY_MAY_VARY)]
    for run, other in (pair for group in groups for pair in pairwise(group)):
        if run.experiment.seed == other.experiment.seed:
            raise InputError(
                f"{run.path} and {other.path} hold the same experiment with the same seed, {run.experiment.seed}. "
                "Name one of them, or train another seed: --set seed=1."
            )
    return [tuple(group) for group in groups]


def same_but(keys: Iterable[str], runs: Iterable[RunFolder]) -> list[list[RunFolder]]:
    """Group runs that differ in these settings alone, or in their names, seeds, estimators of L and recordings."""
    return _grouped(runs, (*keys, *STUDY_MAY_VARY, "name", "lipschitz", "record"))


def _grouped(runs: Iterable[RunFolder], may_vary: Sequence[str]) -> list[list[RunFolder]]:
    groups: dict[bytes, list[RunFolder]] = {}
    for run in runs:
        settings = run.experiment.settings(without=may_vary)
        groups.setdefault(msgspec.json.encode(settings, order="sorted"), []).append(run)
    return list(groups.values())


# Settings that tables show in columns, or that do not change a training.
SHOWN = (
    *("name", "summary", "seed", "arms", "sweep", "attacks", "decides", "record", "data.name", "data.train_examples"),
    "data.fingerprint",
    *("model", "training.epochs", "training.batch_size", "training.objective", "training.schedule.rate"),
)


def apart(experiments: Sequence[Experiment], shown: Sequence[str] = SHOWN) -> list[str]:
    """Return for each experiment the settings, other than `shown`, in which they differ: `training.momentum 0.9`."""
    settings = [experiment.settings(without=(*shown, "lipschitz.wanted")) for experiment in experiments]
    keys = dict.fromkeys(key for values in settings for key in values)
    differing = [key for key in keys if any(values.get(key) != settings[0].get(key) for values in settings)]
    return [
        ", ".join(f"{key} {values[key]}" for key in differing if values.get(key) is not None) for values in settings
    ]


def titles(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """Return a title for each group: network and data, and the other settings in which the groups differ."""
    experiments = [group[0].experiment for group in groups]
    names = [f"{experiment.network}, {experiment.data_set}" for experiment in experiments]
    return [f"{name}\n{words}" if words else name for name, words in zip(names, apart(experiments), strict=True)]


class PublishedArm(msgspec.Struct, frozen=True):
    """Accuracies in %, each with its standard deviation over seeds."""

    clean: tuple[float, float]
    robust: tuple[float, float]


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

    def __str__(self) -> str:
        return f"{self.constant:g}, ({self.n_maxima}, {self.n_points}), {self.epochs}, {self.batch_size}"

    def measured_by(self, attack: Mapping[str, Any]) -> bool:
        """Whether an attack of an experiment, given by its options, is the one of the row's table."""
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
    if row is None:
        return None
    subjects = {(each.data.name, each.model.name, each.objective) for each in (experiment, load(experiment.name))}
    return row if len(subjects) == 1 else None


def at_full_scale(name: str) -> str:
    """The name of an experiment without the "-small" of its small twin."""
    return name.removesuffix("-small")
