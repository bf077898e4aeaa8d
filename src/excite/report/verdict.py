"""Compare each arm with the baseline, and conclude: did 1/L or 2/L help, by how much, and what speaks against that?

This module computes what templates/verdict.j2 puts into sentences.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import Any

from excite.evaluation import Evaluation
from excite.evaluation.comparison import paired_difference
from excite.quantities import duration
from excite.report.estimates import UNMET, doubted, doubted_together, used_estimates
from excite.report.formats import listed, percent, points, template
from excite.report.rows import BASELINE, CLEAN, Row, arm_names, by_experiment, pairs, select
from excite.runs.arms import Arm, arm_named, in_order
from excite.runs.folder import FURTHER, RunFolder, Weights

LARGE_BATCH, FITTED = 1000, 0.95  # images; share of the training images, below which a training has not finished
OVERFITTED = 0.01  # share of the test images that the last weights lose against the best ones
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
    BOTH_LEARNED_NOTHING = "learned nothing, like the baseline"
    BASELINE_LEARNED_NOTHING = "cannot be compared because the baseline learned nothing"
    BASELINE_DIVERGED = "cannot be compared because the baseline diverged"
    NOT_EVALUATED = "cannot be compared yet: evaluations are missing"


HELPFUL = (Effect.HELPED, Effect.MAYBE_HELPED)
CLEAR = (*HELPFUL, Effect.HURT, Effect.MAYBE_HURT)
WEAKER = {Effect.HELPED: Effect.MAYBE_HELPED, Effect.HURT: Effect.MAYBE_HURT}


@dataclass(frozen=True)
class Finding:
    """One arm compared with the baseline on one set of images; accuracies are shares, not percentages."""

    name: str  # the arm's folder
    arm: str  # its short title
    effect: Effect
    images: str
    baseline: float = math.nan
    value: float = math.nan
    difference: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)  # 95%, of the difference
    seeds: tuple[int, ...] = ()  # at which both were evaluated; all numbers here are means over these
    failures: str = ""  # such as "2 of 5 seeds diverged"
    unbeaten: tuple[str, ...] = ()  # controls that the arm is not clearly better than, if it helped

    @property
    def compared(self) -> bool:
        return math.isfinite(self.difference)

    @property
    def conclusion(self) -> str:
        """The effect, and whether a control may explain it."""
        return f"{self.effect}, but not clearly more than {listed(self.unbeaten)}" if self.unbeaten else self.effect

    def __str__(self) -> str:
        low, high = map(points, self.interval)
        details = f"{points(self.difference)} points, 95% interval {low} to {high}"
        failures = f"; {self.failures}" if self.failures else ""
        return f"{percent(self.value)} for {self.arm} ({details}{failures})"


def compare_arms(rows: Sequence[Row], images: str | None = None) -> list[Finding]:
    """Compare every arm of one experiment with the baseline; by default under the attack that decides."""
    names = arm_names(rows)
    if BASELINE not in names:
        return []
    images = images or rows[0].group.experiment.deciding
    controls = [name for name in names if arm_named(name).control]
    findings = [compare(rows, name, images) for name in names if name != BASELINE]
    return [
        replace(finding, unbeaten=_unbeaten(rows, finding, controls))
        if finding.effect in HELPFUL and finding.name not in controls
        else finding
        for finding in findings
    ]


def _unbeaten(rows: Sequence[Row], helped: Finding, controls: Sequence[str]) -> tuple[str, ...]:
    """The controls that the arm is not clearly better than, or was compared with at too few seeds."""
    against = [(name, compare(rows, helped.name, helped.images, against=name)) for name in controls]
    return tuple(
        _title(rows, name)
        for name, finding in against
        if finding.compared and (finding.interval[0] <= 0 or len(finding.seeds) == 1 < len(helped.seeds))
    )


def compare(
    rows: Sequence[Row], name: str, images: str, *, against: str = BASELINE, weights: Weights = "last"
) -> Finding:
    """Compare one arm of an experiment with another."""
    title, n_seeds = _title(rows, name), len(rows[0].group.runs)
    diverged, other_diverged = (sum(bool(row.arm.problem) for row in select(rows, arm)) for arm in (name, against))
    paired = pairs(select(rows, against, images), select(rows, name, images), weights)
    if not paired:
        evaluated = any(row.evaluation() for row in select(rows, name))
        no_baseline = Effect.BASELINE_DIVERGED if other_diverged and evaluated else Effect.NOT_EVALUATED
        return Finding(name, title, Effect.DIVERGED if diverged else no_baseline, images)
    evaluations = list(paired.values())
    difference = paired_difference(evaluations, images)
    low, high = difference.interval
    effect = Effect.HELPED if low > 0 else Effect.HURT if high < 0 else Effect.UNCLEAR
    if len(evaluations) == 1 or diverged or other_diverged:  # the seeds that remain may be the lucky ones
        effect = WEAKER.get(effect, effect)
    other_dead, dead = (
        sum(evaluation.learned_nothing for evaluation in side) for side in zip(*evaluations, strict=True)
    )
    if dead == len(evaluations):
        effect = Effect.BOTH_LEARNED_NOTHING if other_dead == dead else Effect.LEARNED_NOTHING
    elif other_dead == len(evaluations):
        effect = Effect.BASELINE_LEARNED_NOTHING
    other = "the baseline" if against == BASELINE else _title(rows, against)
    failures = {
        f"{diverged} of {n_seeds} seeds diverged": diverged,
        f"{dead} of {n_seeds} seeds learned nothing": 0 < dead < len(evaluations),
        f"{other} diverged at {other_diverged} of {n_seeds} seeds": other_diverged,
        f"{other} learned nothing at {other_dead} of {n_seeds} seeds": 0 < other_dead < len(evaluations),
    }
    return Finding(
        name=name,
        arm=title,
        effect=effect,
        images=images,
        baseline=fmean(_share(first, images) for first, _ in evaluations),
        value=fmean(_share(second, images) for _, second in evaluations),
        difference=difference.difference,
        interval=difference.interval,
        seeds=tuple(paired),
        failures=", ".join(words for words, happened in failures.items() if happened),
    )


def _title(rows: Sequence[Row], name: str) -> str:
    return select(rows, name)[0].arm.short_title


def _share(evaluation: Evaluation, images: str) -> float:
    return evaluation.clean.value if images == CLEAN else evaluation.robust[images].value


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
    experiments = by_experiment(rows)
    only = experiments[0] if len(experiments) == 1 else []
    by_setting = [compare_arms(experiment) for experiment in experiments]
    findings = [finding for arms in by_setting for finding in arms]
    compared = [finding for finding in findings if finding.compared]
    runs = list(dict.fromkeys(row.run for row in rows))
    warnings = _warnings(rows) if compared else {}
    suspects = {arm.name for arm in warnings.values() if not arm.control}  # a weaker control only helps the arm
    arms = [finding for finding in compared if not arm_named(finding.name).control]
    fitted = _train_accuracy(only, BASELINE)
    facts = {
        "MANY": MANY,
        "runs": runs,
        "compared": compared,
        "arms": arm_names(only),
        "experiment": only[0].group.experiment if only else None,
        "n_settings": sum(map(bool, by_setting)),
        "diverged": _diverged(only, findings),
        "arms_by_conclusion": _grouped((finding.conclusion, finding.arm) for finding in findings),
        "conclusions_by_arm": _grouped((finding.arm, finding.conclusion) for finding in findings),
        "warnings": warnings,
        "suspects": [finding.arm for finding in findings if finding.name in suspects] if suspects else None,
        "some_trusted": only and BASELINE not in suspects and any(arm.name not in suspects for arm in arms),
        "doubts": list(_doubts(experiments, runs)),
        "baseline_fitted": fitted,
        "better_fitted": [] if fitted is None else list(_better_fitted(only, findings, fitted)),
        "unfinished": fitted is not None and fitted < FITTED and _learns_in_large_batches(only),
        "overfitted": _overfitted(only),
        "disagreements": _disagreements(only, findings),
        "unidentified": _unidentified(runs),
        "unmet": list(_unmet(rows)),
    }
    sentences: Any = template("verdict.j2", duration=duration).make_module(facts)
    headline, evidence = (" ".join(text.split()) for text in (sentences.headline, sentences.evidence))
    cautions = (" ".join(text.split()) for text in sentences.cautions.split("\n\n"))
    unanimous = only or len({finding.conclusion for finding in compared}) == 1
    tone = "warning" if suspects else _tone(arms) if unanimous else "unclear"
    return Verdict(headline, evidence, tuple(filter(None, cautions)), tone)


def _grouped(words: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, value in words:
        groups.setdefault(key, []).append(value)
    return groups


def _tone(arms: Iterable[Finding]) -> str:
    """The effect that all arms with a clear effect share."""
    effects = {Effect.UNCLEAR if finding.unbeaten else finding.effect for finding in arms} - {Effect.UNCLEAR}
    return next((str(effect) for effect in (Effect.HELPED, Effect.HURT) if effects == {effect}), "unclear")


def _diverged(only: Sequence[Row], findings: Sequence[Finding]) -> list[str]:
    baseline = ["the baseline"] if any(row.arm.problem for row in select(only, BASELINE)) else []
    return baseline + [finding.arm for finding in findings if only and finding.effect is Effect.DIVERGED]


def _warnings(rows: Sequence[Row]) -> dict[str, Arm]:
    """The warnings of trust checks, each with its arm, whose true accuracy under attack may be lower."""
    return {
        f"“{flag.name}” ({row.arm.short_title})": row.arm.arm
        for group in by_experiment(select(rows))
        for row in sorted(group, key=lambda row: row.seed)
        if row.arm.evaluation
        for flag in row.arm.evaluation.flags
    }


def _doubts(experiments: Sequence[Sequence[Row]], runs: Sequence[RunFolder]) -> Iterator[tuple[str, int, str]]:
    """For each L that trainings contradict: its name, the number of runs that contradict it alone, and a reason."""
    single = [doubted(run) for run in runs]
    together = {name: why for rows in experiments for name, why in doubted_together(rows[0].group.runs).items()}
    for name in dict.fromkeys([*(name for doubts in single for name in doubts), *together]):
        reasons = [doubts[name] for doubts in single if name in doubts]
        yield name, len(reasons), reasons[0] if reasons else together[name]


def _train_accuracy(rows: Sequence[Row], name: str) -> float | None:
    known = [share for row in select(rows, name) if (share := row.arm.outcome.train_accuracy) is not None]
    return fmean(known) if known else None


def _better_fitted(
    only: Sequence[Row], findings: Sequence[Finding], baseline: float
) -> Iterator[tuple[Finding, float]]:
    """Arms that helped and also fitted more training images than the baseline, which may be why they helped."""
    for finding in findings:
        fitted = _train_accuracy(only, finding.name)
        helped = finding.effect in HELPFUL and not arm_named(finding.name).control
        if helped and fitted is not None and fitted > baseline + BETTER_FITTED:
            yield finding, fitted


def _learns_in_large_batches(only: Sequence[Row]) -> bool:
    experiment = only[0].group.experiment
    learned = not any(row.arm.evaluation and row.arm.evaluation.learned_nothing for row in select(only, BASELINE))
    return learned and experiment.trains_plainly and experiment.training.batch_size >= LARGE_BATCH


def _overfitted(only: Sequence[Row]) -> float | None:
    """The accuracy that the baseline lost after its best epoch, in adversarial training."""
    if not only or only[0].group.experiment.trains_plainly:
        return None
    deciding = only[0].group.experiment.deciding
    last_and_best = [
        (last, best)
        for row in select(only, BASELINE, deciding)
        if (last := row.evaluation()) and (best := row.evaluation("best"))
        if row.accuracy() and row.accuracy("best")
    ]
    lost = paired_difference(last_and_best, deciding).difference if last_and_best else 0.0
    return lost if lost >= OVERFITTED else None


def _disagreements(only: Sequence[Row], findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Clear effects that are reversed under another attack, or with the best or the averaged weights."""
    clear = {finding.name: finding.difference for finding in findings if only and finding.effect in CLEAR}
    if not clear:
        return {}
    experiment = only[0].group.experiment
    others = {
        f"The attacks disagree: under {attack}": [compare(only, name, attack) for name in clear]
        for attack in experiment.attacks
        if attack != experiment.deciding
    }
    for weights in FURTHER:
        where = f"The {weights} and the last weights disagree: with the {weights} weights"
        others[where] = [compare(only, name, experiment.deciding, weights=weights) for name in clear]
    reverse = {
        where: [other for other in compared if other.effect in CLEAR and other.difference * clear[other.name] < 0]
        for where, compared in others.items()
    }
    return {where: compared for where, compared in reverse.items() if compared}


def _unidentified(runs: Sequence[RunFolder]) -> list[str]:
    estimates = [(name, estimate) for run in runs for name, estimate in used_estimates(run).items()]
    return list(dict.fromkeys(name for name, estimate in estimates if not estimate.reliable))


def _unmet(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """The arms at a multiple of 1/L whose recorded slopes exceed 1/η, with the slopes of their first seed."""
    unmet = {row.name: row.arm for row in reversed(select(rows)) if row.arm.arm.multiple and row.premise_met is False}
    for arm in (unmet[name] for name in in_order(set(unmet))):
        yield arm.short_title, UNMET.format(1 / arm.rate, arm.certified.largest_slope if arm.certified else None)
