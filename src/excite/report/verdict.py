"""Compare each arm with the baseline, and conclude: did 1/L or 2/L help, by how much, and what speaks against that?

This module computes what templates/verdict.j2 puts into sentences.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from excite.evaluation import Evaluation
from excite.evaluation.comparison import PairedDifference, paired_difference
from excite.lipschitz.protocol import LipschitzEstimate
from excite.report.estimates import UNMET, L_by, doubted, trust, used_estimates
from excite.report.formats import listed, percent, points, template
from excite.report.rows import BASELINE, CLEAN, Row, arm_title, by_arm, by_experiment, images_of, train_accuracy
from excite.runs.arms import OWN, Arm, arm_named, in_order
from excite.runs.experiment import Experiment
from excite.runs.folder import RunFolder, Weights

BETTER_FITTED = 0.01  # share of the training images
MANY = 5  # comparisons, among which a false alarm is likely enough to be mentioned


class Effect(StrEnum):
    """What an arm did, compared with the baseline; the value is what a sentence says about one arm or several."""

    HELPED = "helped"
    HURT = "hurt"
    UNCLEAR = "made no clear difference"
    MAYBE_HELPED = "may have helped"  # with one seed, or if some seeds failed
    MAYBE_HURT = "may have hurt"
    DIVERGED = "diverged"
    LEARNED_NOTHING = "learned nothing"  # the clean accuracy is no better than guessing
    BASELINE_FAILED = "cannot be compared because the baseline diverged or learned nothing"
    NOT_EVALUATED = "cannot be compared yet: evaluations are missing"


HELPFUL = (Effect.HELPED, Effect.MAYBE_HELPED)
WEAKER = {Effect.HELPED: Effect.MAYBE_HELPED, Effect.HURT: Effect.MAYBE_HURT}


class Mean(NamedTuple):
    """A mean over seeds with its standard deviation; for one seed, its 95% interval instead."""

    mean: float
    deviation: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class Result:
    """One arm of one experiment on one set of test images, over seeds, compared with the baseline or a control."""

    arms: Mapping[str, Sequence[Row]]  # all rows of the experiment
    name: str  # of the arm
    images: str  # "clean", or the name of an attack
    weights: Weights = "last"
    other: str = BASELINE  # the arm to compare with

    @property
    def rows(self) -> Sequence[Row]:
        return self.arms[self.name]

    @property
    def others(self) -> Sequence[Row]:
        """The rows of the arm to compare with; () if it was not trained."""
        return self.arms.get(self.other, ())

    def at(self, weights: Weights) -> "Result":
        """The result with other weights of the same trainings."""
        return replace(self, weights=weights)

    @property
    def runs(self) -> tuple[RunFolder, ...]:
        """All runs of the experiment, including those in which this arm was not trained."""
        return self.rows[0].runs

    @property
    def experiment(self) -> Experiment:
        return self.rows[0].experiment

    @property
    def arm(self) -> Arm:
        return arm_named(self.name)

    @property
    def title(self) -> str:
        return arm_title([row.arm for row in self.rows])

    @property
    def n_evaluated(self) -> int:
        return sum(row.evaluation() is not None for row in self.rows)

    @property
    def n_diverged(self) -> int:
        return sum(bool(row.arm.problem) for row in self.rows)

    @property
    def accuracy(self) -> Mean | None:
        """In %."""
        accuracies = [accuracy for row in self.rows if (accuracy := row.accuracy(self.images, self.weights))]
        shares = [accuracy.value for accuracy in accuracies]
        if len(shares) == 1:
            low, high = accuracies[0].interval
            return Mean(100 * shares[0], None, 100 * low, 100 * high)
        return Mean(100 * statistics.mean(shares), 100 * statistics.stdev(shares), None, None) if shares else None

    @property
    def doubted(self) -> bool:
        """Whether a trust check warned about an attack on this arm."""
        evaluations = [row.evaluation(self.weights) for row in self.rows]
        return self.images != CLEAN and any(evaluation.flags for evaluation in evaluations if evaluation)

    @cached_property
    def pairs(self) -> dict[int, tuple[Evaluation, Evaluation]]:
        """By seed, the evaluations of the other arm and of this one, where both have an accuracy on these images."""
        others, evaluations = (
            {
                row.experiment.seed: evaluation
                for row in rows
                if (evaluation := row.evaluation(self.weights)) and row.accuracy(self.images, self.weights)
            }
            for rows in (self.others, self.rows)
        )
        return {seed: (others[seed], evaluations[seed]) for seed in evaluations if seed in others}

    @property
    def seeds(self) -> tuple[int, ...]:
        """At which both arms were evaluated; all differences and means are over these."""
        return tuple(self.pairs)

    @cached_property
    def difference(self) -> PairedDifference | None:
        """The accuracy minus the other arm's, paired by image and seed; None for the baseline."""
        is_baseline, pairs = self.name == BASELINE, list(self.pairs.values())
        return None if is_baseline or not pairs else paired_difference(pairs, self.images)

    @property
    def gain(self) -> float:
        return self.difference.difference if self.difference else math.nan

    @property
    def means(self) -> list[float]:
        """The accuracies of the other arm and of this one as shares, over the seeds that have both."""
        sides = zip(*self.pairs.values(), strict=True)
        return [
            fmean(each.clean.value if self.images == CLEAN else each.robust[self.images].value for each in side)
            for side in sides
        ]

    @cached_property
    def effect(self) -> Effect:
        """What the arm did, compared with the other one."""
        if not self.difference:
            if self.n_diverged:
                return Effect.DIVERGED
            other_diverged = any(row.arm.problem for row in self.others)
            return Effect.BASELINE_FAILED if other_diverged and self.n_evaluated else Effect.NOT_EVALUATED
        other, own = (all(each.learned_nothing for each in side) for side in zip(*self.pairs.values(), strict=True))
        if other or own:
            return Effect.BASELINE_FAILED if other else Effect.LEARNED_NOTHING
        low, high = self.difference.interval
        effect = Effect.HELPED if low > 0 else Effect.HURT if high < 0 else Effect.UNCLEAR
        weak = len(self.pairs) == 1 or self.failures  # the seeds that remain may be the lucky ones
        return WEAKER.get(effect, effect) if weak else effect

    @property
    def failures(self) -> str:
        """Such as "2 of 5 seeds failed": diverged or learned nothing; "" if there are none, or no comparison."""
        if not self.difference:
            return ""
        own, others = (sum(row.arm.failed for row in rows) for rows in (self.rows, self.others))
        other = _named(arm_named(self.other))
        of = f"of {len(self.runs)} seeds"
        return ", ".join([f"{own} {of} failed"] * bool(own) + [f"{other} failed at {others} {of}"] * bool(others))

    @cached_property
    def unbeaten(self) -> list[str]:
        """If the arm helped, the controls that it is not clearly better than, or was compared with at too few seeds."""
        if self.effect not in HELPFUL or self.arm.control:
            return []
        controls = [arm for name in self.arms if (arm := arm_named(name)).control]
        differences = [(control, replace(self, other=control.name).difference) for control in controls]
        return [
            control.short_title
            for control, difference in differences
            if difference and (difference.interval[0] <= 0 or difference.seeds == 1 < len(self.pairs))
        ]

    @property
    def conclusion(self) -> str:
        """The effect, and whether a control may explain it."""
        return f"{self.effect}, but not clearly more than {listed(self.unbeaten)}" if self.unbeaten else self.effect

    @property
    def estimates(self) -> list[LipschitzEstimate]:
        """The L of each run of the experiment that has one for this arm."""
        return [estimate for run in self.runs if (estimate := run.estimate_of(self.name))]

    @cached_property
    def trusted(self) -> bool:
        """Whether every L is identified or stated, and no training contradicts it."""
        alone = [trust(run, estimate).trusted for run in self.runs if (estimate := run.estimate_of(self.name))]
        return all(alone) and L_by(self.arm.estimator or OWN) not in doubted(self.runs)

    @property
    def method(self) -> str:
        """How L was estimated, with (M, N) if the method has them, and whether all seeds share one estimate."""
        name, runs, estimates = self.arm.estimator or OWN, self.runs, self.estimates
        words = dict.fromkeys(estimate.method for estimate in estimates)
        asked = any(run.options_of(name).get("shared") for run in runs if name in run.estimates)
        if asked and len(runs) > 1 and len({estimate.constant for estimate in estimates}) == 1:
            words["one for all seeds"] = None
        return ", ".join(words)

    def __str__(self) -> str:
        if not self.difference:
            return self.effect
        low, high = map(points, self.difference.interval)
        details = f"{points(self.gain)} points, 95% interval {low} to {high}"
        failures = f"; {self.failures}" if self.failures else ""
        return f"{percent(self.means[1])} for {self.arm.short_title} ({details}{failures})"


def _named(arm: Arm) -> str:
    return "the baseline" if arm.name == BASELINE else arm.short_title


def results(rows: Sequence[Row]) -> list[Result]:
    """One per experiment, arm and set of images."""
    images = images_of(rows)
    return [Result(arms, name, on) for arms in map(by_arm, by_experiment(rows)) for name in arms for on in images]


def compare_arms(rows: Sequence[Row], images: str | None = None) -> list[Result]:
    """Compare every arm of one experiment with the baseline; by default under the attack that decides."""
    arms, images = by_arm(rows), images or rows[0].experiment.deciding
    return [Result(arms, name, images) for name in arms if name != BASELINE] if BASELINE in arms else []


@dataclass(frozen=True)
class Verdict:
    """The conclusion in a headline, the numbers behind it, and what to keep in mind."""

    headline: str
    evidence: str
    cautions: tuple[str, ...]
    tone: str  # helped, hurt, unclear or warning: the color of the page's headline

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.headline}.", self.evidence, *self.cautions]))


def conclude(rows: Sequence[Row]) -> Verdict:
    """The verdict on one experiment, with one seed or several, or on many experiments."""
    every = [result for experiment in by_experiment(rows) for result in compare_arms(experiment)]
    compared = [result for result in every if result.difference]
    arms = [result for result in compared if not result.arm.control]
    groups = list(dict.fromkeys(row.runs for row in rows))  # by experiment
    runs, only = [run for group in groups for run in group], len(groups) == 1
    warnings = _warnings(rows) if compared else {}
    suspects = dict.fromkeys(_named(arm) for arm in warnings.values() if not arm.control)
    used = [(name, estimate) for run in runs for name, estimate in used_estimates(run).items()]
    facts = {
        "MANY": MANY,
        "only": only,
        "runs": runs,
        "compared": compared,
        "n_settings": len({result.runs for result in every}),
        "diverged": list(dict.fromkeys(_named(row.arm.arm) for row in rows if row.arm.problem)) if only else [],
        "arms_by_conclusion": _grouped((result.conclusion, result.arm.short_title) for result in every),
        "conclusions_by_arm": _grouped((result.arm.short_title, result.conclusion) for result in every),
        "warnings": warnings,
        "suspects": list(suspects),  # a weaker control only helps the arm
        "doubts": {name: why for group in groups for name, why in doubted(group).items()},
        "better_fitted": list(_better_fitted(arms)) if only else [],
        "unidentified": list(dict.fromkeys(name for name, estimate in used if not estimate.reliable)),
        "unmet": list(_unmet(rows)),
    }
    sentences: Any = template("verdict.j2").make_module(facts)
    headline, evidence = (" ".join(text.split()) for text in (sentences.headline, sentences.evidence))
    cautions = (" ".join(text.split()) for text in sentences.cautions.split("\n\n"))
    unanimous = only or len({result.conclusion for result in compared}) == 1
    tone = "warning" if suspects else _tone(arms) if unanimous else "unclear"
    return Verdict(headline, evidence, tuple(filter(None, cautions)), tone)


def _grouped(words: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, value in words:
        groups.setdefault(key, []).append(value)
    return groups


def _tone(arms: Iterable[Result]) -> str:
    """The effect that all arms with a clear effect share."""
    effects = {Effect.UNCLEAR if arm.unbeaten else arm.effect for arm in arms} - {Effect.UNCLEAR}
    return next((str(effect) for effect in (Effect.HELPED, Effect.HURT) if effects == {effect}), "unclear")


def _warnings(rows: Sequence[Row]) -> dict[str, Arm]:
    """The warnings of trust checks, each with its arm, whose true accuracy under attack may be lower."""
    return {
        f"“{flag.name}” ({_named(row.arm.arm)})": row.arm.arm
        for row in rows
        if (evaluation := row.evaluation())
        for flag in evaluation.flags
    }


def _better_fitted(arms: Iterable[Result]) -> Iterator[tuple[str, float, float]]:
    """Arms that helped and also fitted more training images, with both shares: that may be why they helped."""
    for result in arms:
        own, baseline = (train_accuracy(rows) for rows in (result.rows, result.others))
        if result.effect in HELPFUL and own and baseline and own > baseline + BETTER_FITTED:
            yield result.arm.short_title, own, baseline


def _unmet(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """The arms at a multiple of 1/L whose recorded slopes exceed 1/η, with the slopes of their first seed."""
    unmet = {row.name: row.arm for row in reversed(rows) if row.arm.arm.multiple and row.premise_met is False}
    for arm in (unmet[name] for name in in_order(set(unmet))):
        yield arm.short_title, UNMET.format(1 / arm.rate, arm.certified.largest_slope if arm.certified else None)
