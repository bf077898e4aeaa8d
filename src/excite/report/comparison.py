"""Compare each arm with the baseline, and with controls, at the same seeds and on the same images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from excite.evaluation import Evaluation
from excite.evaluation.comparison import paired_difference
from excite.report.formats import listed
from excite.report.rows import BASELINE, CLEAN, Row, arm_names, pairs, select


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


def compare_arms(rows: Sequence[Row], images: str | None = None) -> list[Finding]:
    """Compare every arm of one experiment with the baseline; by default under the attack that decides."""
    names = arm_names(rows)
    if BASELINE not in names:
        return []
    images = images or rows[0].group.experiment.deciding
    controls = [name for name in names if select(rows, name)[0].arm.arm.control]
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


def compare(rows: Sequence[Row], name: str, images: str, *, against: str = BASELINE, best: bool = False) -> Finding:
    """Compare one arm of an experiment with another: with their last weights, or their best ones."""
    title, n_seeds = _title(rows, name), len(rows[0].group.runs)
    diverged, other_diverged = (sum(bool(row.arm.problem) for row in select(rows, arm)) for arm in (name, against))
    paired = pairs(select(rows, against, images), select(rows, name, images), best=best)
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
