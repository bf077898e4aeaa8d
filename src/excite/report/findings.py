"""What each arm did against the baseline, or against a control, at the same seeds and images, and how clearly."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from excite.evaluation import Evaluation
from excite.evaluation.comparison import paired_difference
from excite.report.tables.study_columns import evaluations_of, paired
from excite.runs.arms import arm_named
from excite.runs.collection import Group

BASELINE = "baseline"

HELPED, HURT, UNCLEAR = "helped", "hurt", "made no clear difference"
MAYBE = {HELPED: "may have helped", HURT: "may have hurt"}  # after one training, or where some were lost
HELPFUL = (HELPED, MAYBE[HELPED])
CLEAR = {*MAYBE, *MAYBE.values()}
DIVERGED, PENDING = "diverged", "is not evaluated yet"
NO_BASELINE = "has no baseline to stand beside, which diverged"
DEAD, AGAINST_DEAD = "learned nothing", "met a baseline that learned nothing"  # clean accuracy is that of guessing
ALL_DEAD = f"{DEAD}, nor did the baseline"


@dataclass(frozen=True)
class Finding:
    """One arm against the baseline under one attack; shares of test images, not percentages."""

    name: str  # of the arm's folder
    arm: str
    effect: str
    attack: str
    baseline: float = math.nan
    value: float = math.nan
    difference: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)  # 95%, of the difference
    seeds: tuple[int, ...] = ()  # at which both were evaluated: all figures here are of these
    missing: str = ""  # "2 of 5 seeds diverged, the baseline learned nothing at 1 of 5 seeds"
    unbeaten: tuple[str, ...] = ()  # controls that may have done as well, where the arm helped

    @property
    def so(self) -> str:
        """The effect; one that a control has too is not the arm's own."""
        return (
            f"{self.effect}, but was not shown to do more than {listed(self.unbeaten)}"
            if self.unbeaten
            else self.effect
        )

    @property
    def compared(self) -> bool:
        return math.isfinite(self.difference)

    def __str__(self) -> str:
        if not self.compared:
            return f"{self.arm} {self.effect}"
        missing = f"; {self.missing}" if self.missing else ""
        return f"{percent(self.value)} with {self.arm} ({points(self.difference, self.interval)}{missing})"

    def alone(self) -> str:
        """For a sentence in which other arms are of other seeds: with the baseline of the same ones."""
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {listed(map(str, self.seeds))}"
        return f"{self} against {percent(self.baseline)} with the baseline at {seeds}"


def compare_arms(group: Group, on: str | None = None) -> tuple[Finding, ...]:
    """Every arm against the baseline of the same seed: on `"clean"` or an attack, by default the one that decides."""
    attack = on or group.experiment.deciding
    if BASELINE not in group.arm_names:
        return ()
    names = [name for name in group.arm_names if name != BASELINE]
    controls = [name for name in names if arm_named(name).control]
    return tuple(
        replace(found, unbeaten=_unbeaten(group, found, controls)) if found.effect in HELPFUL else found
        for found in (compare(group, name, attack) for name in names)
    )


def _unbeaten(group: Group, helped: Finding, controls: Sequence[str]) -> tuple[str, ...]:
    """The controls at the same seeds and images that the arm is not clearly better than, or not at enough seeds."""
    if helped.name in controls:
        return ()
    found = {control: compare(group, helped.name, helped.attack, against=control) for control in controls}
    return tuple(
        title_of(group, control)
        for control, one in found.items()
        if one.compared and (one.interval[0] <= 0 or len(one.seeds) == 1 < len(helped.seeds))
    )


def title_of(group: Group, name: str) -> str:
    return group.arms(name)[0].short_title


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def points(difference: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{signed(difference)} points, 95% interval {signed(low)} to {signed(high)}"


def signed(share: float) -> str:
    """Percentage points with their sign; what rounds to zero is +0.0."""
    return f"{round(100 * share, 1) + 0.0:+.1f}".replace("-", "−")


def compare(group: Group, name: str, attack: str, against: str = BASELINE, *, best: bool = False) -> Finding:
    title, seeds = title_of(group, name), len(group.runs)
    diverged, without = (sum(bool(arm.problem) for arm in group.arms(one)) for one in (name, against))
    by_seed = paired(evaluations_of(group, against, best=best), evaluations_of(group, name, best=best), attack)
    if not by_seed:
        lone = without and bool(evaluations_of(group, name))
        return Finding(name, title, DIVERGED if diverged else NO_BASELINE if lone else PENDING, attack)
    pairs = list(by_seed.values())
    found = paired_difference(pairs, attack)
    low, high = found.interval
    effect = HELPED if low > 0 else HURT if high < 0 else UNCLEAR
    if found.seeds == 1 or diverged or without:  # the seeds that remain may be the lucky ones
        effect = MAYBE.get(effect, effect)
    dead_before, dead = (sum(judged.learned_nothing for judged in side) for side in zip(*pairs, strict=True))
    if len(pairs) in (dead, dead_before):
        effect = ALL_DEAD if dead == dead_before else DEAD if dead == len(pairs) else AGAINST_DEAD
    lost = [f"{diverged} of {seeds} seeds diverged"] if diverged else []
    lost += [f"{dead} of {seeds} seeds learned nothing"] if 0 < dead < len(pairs) else []
    beside = "the baseline" if against == BASELINE else title_of(group, against)
    lost += [f"{beside} diverged at {without} of {seeds} seeds"] if without else []
    lost += [f"{beside} learned nothing at {dead_before} of {seeds} seeds"] if 0 < dead_before < len(pairs) else []
    return Finding(
        name=name,
        arm=title,
        effect=effect,
        attack=attack,
        baseline=fmean(_share(first, attack) for first, _ in pairs),
        value=fmean(_share(second, attack) for _, second in pairs),
        difference=found.difference,
        interval=found.interval,
        seeds=tuple(by_seed),
        missing=", ".join(lost),
    )


def _share(evaluation: Evaluation, attack: str) -> float:
    return evaluation.clean.value if attack == "clean" else evaluation.robust[attack].value


def listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
