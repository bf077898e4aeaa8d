"""Tidy rows: one per experiment, arm, seed and set of test images; their summary over seeds; the paper's numbers."""

import math
import statistics
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import groupby, pairwise
from typing import Any

import msgspec

from excite.evaluation import Accuracy, Evaluation
from excite.evaluation.comparison import PairedDifference, paired_difference
from excite.evaluation.result import Curve, MedianRadius
from excite.lipschitz.protocol import LipschitzEstimate
from excite.quantities import number
from excite.report.estimates import L_by, doubted_together, options_of_estimate, trust_in
from excite.runs import Experiment, load
from excite.runs.arms import OWN
from excite.runs.collection import Group, apart, by_seed
from excite.runs.folder import ArmFolder, RunFolder, Weights, arm_title

Pair = tuple[Evaluation, Evaluation]  # of the baseline and of an arm
BASELINE, CLEAN = "baseline", "clean"

# The attacks of the paper's Tables 1 and 2
LINF = {"norm": "linf"}
PGD_20: dict[str, Any] = LINF | {"kind": "pgd", "eps": 1 / 255, "steps": 20, "loss": "cross_entropy", "restarts": 1}
WHOLE: dict[str, Any] = {"version": "standard", "members": None, "iterations": 100, "queries": 5000}
AUTOATTACK: dict[str, Any] = LINF | {"kind": "autoattack", "eps": 8 / 255} | WHOLE


@dataclass(frozen=True, eq=False)
class Row:
    """One arm of one experiment, trained with one seed and tested on one set of images."""

    group: Group  # all seeds of the experiment
    setting: str  # what sets the experiment apart from the others in the report
    run: RunFolder
    arm: ArmFolder
    images: str  # "clean", or the name of an attack

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def seed(self) -> int:
        return self.run.experiment.seed

    def evaluation(self, weights: Weights = "last") -> Evaluation | None:
        return self.arm.of(weights).evaluation

    def accuracy(self, weights: Weights = "last") -> Accuracy | None:
        evaluation = self.evaluation(weights)
        if evaluation is None:
            return None
        return evaluation.clean if self.images == CLEAN else evaluation.robust.get(self.images)

    @property
    def curve(self) -> Curve | None:
        """Accuracy at several radii, if the attack ran at several."""
        return self.arm.evaluation.curves.get(self.images) if self.arm.evaluation else None

    @property
    def premise_met(self) -> bool | None:
        """Whether every recorded slope is at most 1/η, as the theorem requires; None if no slope was recorded."""
        slope = self.arm.certified.largest_slope if self.arm.certified else None
        return None if slope is None else slope <= 1 / self.arm.rate

    @property
    def batch_size(self) -> int:
        return self.arm.outcome.batch_size or self.run.experiment.training.batch_size

    @property
    def rate_per_image(self) -> float:
        """η¹/B."""
        return self.arm.rate / self.batch_size

    @property
    def rate_times_decay(self) -> float:
        """η¹·λ, with weight decay λ."""
        return self.arm.rate * self.run.experiment.training.weight_decay

    @property
    def steps_after_drop(self) -> float | None:
        """Training steps after the last change of the rate; None if it never changed, or the steps are unknown."""
        rates, steps = [epoch.rate for epoch in self.arm.epochs], self.arm.outcome.steps
        changes = [n for n, (a, b) in enumerate(pairwise(rates), start=1) if not math.isclose(a, b, rel_tol=1e-9)]
        return steps * (len(rates) - changes[-1]) / len(rates) if changes and steps is not None else None

    @property
    def final_rate(self) -> float | None:
        return self.arm.epochs[-1].rate if self.arm.epochs else None

    @property
    def final_loss(self) -> float | None:
        """The mean over the batches of the last epoch; None if it is not finite."""
        loss = self.arm.epochs[-1].loss if self.arm.epochs else math.nan
        return loss if math.isfinite(loss) else None


def tidy(runs: Iterable[RunFolder]) -> list[Row]:
    """The rows of all runs, ordered by experiment, arm, images and seed.

    Every arm gets a row for each attack in the report, also for attacks that were run in another experiment only.
    """
    groups = by_seed(runs)
    evaluations = (arm.evaluation for group in groups for name in group.arm_names for arm in group.arms(name))
    attacks = dict.fromkeys(name for evaluation in evaluations if evaluation for name in evaluation.attacks)
    return [
        Row(group, setting, run, arm, images)
        for group, setting in zip(groups, apart([group.experiment for group in groups]), strict=True)
        for name in group.arm_names
        for images in (CLEAN, *attacks)
        for run in group.runs
        for arm in run.arms
        if arm.name == name
    ]


def by_experiment(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each experiment, over all its seeds."""
    return [list(group) for _, group in groupby(rows, key=lambda row: row.group)]


def select(rows: Iterable[Row], arm: str | None = None, images: str = CLEAN) -> list[Row]:
    """The rows of one arm (or all arms) on one set of images: one per training."""
    return [row for row in rows if row.images == images and arm in (None, row.name)]


def arm_names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.name for row in rows))


def pairs(baseline: Iterable[Row], rows: Iterable[Row], weights: Weights = "last") -> dict[int, Pair]:
    """By seed, the evaluations of the baseline and of an arm, where both have an accuracy on these images."""
    first, second = (
        {row.seed: evaluation for row in side if row.accuracy(weights) and (evaluation := row.evaluation(weights))}
        for side in (baseline, rows)
    )
    return {seed: (first[seed], second[seed]) for seed in second if seed in first}


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


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its standard deviation; for one seed, its 95% interval instead."""

    mean: float
    deviation: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class Summary:
    """One arm of one experiment on one set of test images: its rows over seeds, and what follows from them."""

    rows: tuple[Row, ...]
    baseline: tuple[Row, ...]  # of the same experiment and images

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def title(self) -> str:
        return arm_title([row.arm for row in self.rows])

    @property
    def n_seeds(self) -> int:
        """The runs of the experiment, including those in which this arm was not trained."""
        return len(self.first.group.runs)

    @property
    def n_evaluated(self) -> int:
        return sum(row.evaluation() is not None for row in self.rows)

    @property
    def n_diverged(self) -> int:
        return sum(bool(row.arm.problem) for row in self.rows)

    def accuracy(self, weights: Weights = "last") -> Mean | None:
        """In %."""
        accuracies = [accuracy for row in self.rows if (accuracy := row.accuracy(weights))]
        if not accuracies:
            return None
        shares = [accuracy.value for accuracy in accuracies]
        if len(shares) == 1:
            low, high = accuracies[0].interval
            return Mean(100 * shares[0], None, 100 * low, 100 * high)
        return Mean(100 * statistics.mean(shares), 100 * statistics.stdev(shares), None, None)

    def difference(self, weights: Weights = "last") -> PairedDifference | None:
        """The accuracy minus the baseline's, paired by image and seed."""
        paired = pairs(self.baseline, self.rows, weights)
        if self.first.name == BASELINE or not paired:
            return None
        return paired_difference(list(paired.values()), self.first.images)

    def doubted(self, weights: Weights = "last") -> bool:
        """Whether a trust check warned about an attack on this arm."""
        evaluations = [row.evaluation(weights) for row in self.rows]
        return self.first.images != CLEAN and any(evaluation.flags for evaluation in evaluations if evaluation)

    @property
    def medians(self) -> list[MedianRadius]:
        """Per seed, the radius at which half of the images are misclassified, if the attack ran at several."""
        return [row.curve.median for row in self.rows if row.curve]

    @property
    def median_radius(self) -> Mean | None:
        """None also where more than half of the images withstood the largest radius at some seed."""
        radii = [median.value for median in self.medians]
        if len(radii) == 1:
            stored = self.medians[0].to_json()
            return Mean(stored["eps"], None, *stored["interval"])
        if not radii or math.isinf(max(radii)):
            return None
        return Mean(statistics.mean(radii), statistics.stdev(radii), None, None)

    @property
    def estimates(self) -> list[LipschitzEstimate]:
        """The L of each run of the experiment that has one for this arm."""
        runs = self.first.group.runs
        return [estimate for run in runs if (estimate := run.estimate_of(self.first.name))]

    @cached_property
    def trusted(self) -> bool:
        """Whether every L is identified or stated, and no training contradicts it."""
        runs = self.first.group.runs
        single = [trust_in(run, estimate).trusted for run in runs if (estimate := run.estimate_of(self.first.name))]
        return all(single) and L_by(self.first.arm.arm.estimator or OWN) not in doubted_together(runs)

    @property
    def method(self) -> str:
        """How L was estimated, with (M, N) if the method has them, and whether all seeds share one estimate."""
        name, runs, estimates = self.first.arm.arm.estimator or OWN, self.first.group.runs, self.estimates
        words = dict.fromkeys(
            f"{estimate.method} ({estimate.details['M']}, {estimate.details['N']})"
            if "M" in estimate.details
            else estimate.method
            for estimate in estimates
        )
        asked = any(options_of_estimate(run, name).get("shared") for run in runs if name in run.estimates)
        if asked and len(runs) > 1 and len({estimate.constant for estimate in estimates}) == 1:
            words["one for all seeds"] = None
        return ", ".join(words)

    @property
    def published(self) -> PublishedRow | None:
        """The row of the paper's tables that the experiment repeats."""
        return published_row(self.first.group.experiment)

    @property
    def published_arm(self) -> PublishedArm | None:
        return self.published.arms.get(self.first.name) if self.published else None


def summarize(rows: Iterable[Row]) -> list[Summary]:
    """One summary per experiment, arm and set of images."""
    seeds = {key: tuple(same) for key, same in groupby(rows, key=lambda row: (row.group, row.name, row.images))}
    return [Summary(same, seeds.get((group, BASELINE, images), ())) for (group, _, images), same in seeds.items()]
