"""The conclusion in one sentence: did 1/L or 2/L help, by how much, and how sure are we."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from excite.evaluation import Evaluation
from excite.evaluation.comparison import paired_difference
from excite.quantities import duration
from excite.report.tables.study_columns import evaluations_of, paired
from excite.report.trainings import refuted, relied_on
from excite.runs.arms import arm_named
from excite.runs.collection import Group, by_seed
from excite.runs.folder import RunFolder

BASELINE = "baseline"

HELPED, HURT, UNCLEAR = "helped", "hurt", "made no clear difference"
MAYBE = {HELPED: "may have helped", HURT: "may have hurt"}  # after one training
HELPFUL = (HELPED, MAYBE[HELPED])
LARGE_BATCH, UNFINISHED = 1000, 0.95  # images, and of the training images: docs/results.md, A and C
FURTHER = 0.01  # of the training images: by so much more an arm has fitted, it has learned further
DIVERGED, PENDING = "diverged", "is not evaluated yet"
DEAD, AGAINST_DEAD = "learned nothing", "met a baseline that learned nothing"  # clean accuracy is that of guessing

NOTHING = "There is nothing to compare yet"
ONE_TRAINING = "One training per arm: the intervals cover the choice of test images, not the luck of a training run."
NOT_IDENTIFIED = "{} is not identified, so that 1/L and 2/L are what the estimator stopped at: read why under L."


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
    missing: str = ""  # "2 of 5 seeds diverged, 1 of 5 seeds learned nothing"
    unbeaten: tuple[str, ...] = ()  # controls that did as well, where the arm helped

    @property
    def so(self) -> str:
        """The effect; one that a control has too is not the arm's own."""
        return (
            f"{self.effect}, but not more than its control, {_listed(self.unbeaten)}" if self.unbeaten else self.effect
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
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {_listed(map(str, self.seeds))}"
        return f"{self} against {percent(self.baseline)} with the baseline at {seeds}"


@dataclass(frozen=True)
class Verdict:
    """The sentence in two halves, what to keep in mind, and in a word how to take it."""

    headline: str
    evidence: str = ""
    cautions: tuple[str, ...] = ()
    tone: str = "unclear"  # helped, hurt, unclear, warning

    @property
    def sentence(self) -> str:
        return f"{self.headline}: {self.evidence}." if self.evidence else f"{self.headline}."

    def __str__(self) -> str:
        return " ".join([self.sentence, *self.cautions])


def verdict(results: RunFolder) -> str:
    """The conclusion of one run, in words."""
    return str(conclude(by_seed([results])))


def conclude(groups: Sequence[Group]) -> Verdict:
    """The conclusion of one experiment, under one seed or several, or of a sweep over many."""
    findings = [found for group in groups if (found := compare_arms(group))]
    if not any(finding.compared for found in findings for finding in found):
        diverged = [finding.arm for found in findings for finding in found if finding.effect == DIVERGED]
        headline = f"{_listed(dict.fromkeys(diverged))} diverged" if diverged and len(groups) == 1 else NOTHING
        unfinished = _unfinished(groups[0]) if len(groups) == 1 else ()
        return Verdict(headline, cautions=(*_refuted(groups), *unfinished))
    warnings = [warning for group in groups for warning in distrusted(group)]
    told = _one(groups[0], findings[0]) if len(groups) == 1 else _many(findings)
    further = [*_learned_further(groups[0], findings[0]), *_unfinished(groups[0])] if len(groups) == 1 else []
    cautions = (*_refuted(groups), *further, *_disagreements(groups), *_cautions(groups, findings))
    if warnings:
        doubt = f"Trust checks warn: {', '.join(warnings)}."
        headline = f"Not to be trusted yet; as measured, {told.headline[0].lower()}{told.headline[1:]}"
        return Verdict(headline, told.evidence, (doubt, *cautions), "warning")
    return Verdict(told.headline, told.evidence, cautions, told.tone)


def compare_arms(group: Group, on: str | None = None) -> tuple[Finding, ...]:
    """Every arm against the baseline of the same seed: on `"clean"` or an attack, by default the one that decides."""
    attack = on or group.experiment.deciding
    if BASELINE not in group.arm_names:
        return ()
    names = [name for name in group.arm_names if name != BASELINE]
    controls = [name for name in names if arm_named(name).control]
    return tuple(
        replace(found, unbeaten=_unbeaten(group, found, controls)) if found.effect in HELPFUL else found
        for found in (_compare(group, name, attack) for name in names)
    )


def _unbeaten(group: Group, helped: Finding, controls: Sequence[str]) -> tuple[str, ...]:
    """The controls at the same seeds and images that the arm is not clearly better than."""
    if helped.name in controls:
        return ()
    found = {control: _compare(group, helped.name, helped.attack, against=control) for control in controls}
    return tuple(_title(group, control) for control, one in found.items() if one.compared and one.interval[0] <= 0)


def _title(group: Group, name: str) -> str:
    return group.arms(name)[0].short_title


def distrusted(group: Group) -> tuple[str, ...]:
    """The trust checks that warned, each with the arm it warned of."""
    flagged = {
        f"“{flag.name}” ({arm.short_title})": None
        for run in group.runs
        for arm in run.arms
        if arm.evaluation
        for flag in arm.evaluation.flags
    }
    return tuple(flagged)


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def points(difference: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{signed(difference)} points, 95% interval {signed(low)} to {signed(high)}"


def signed(share: float) -> str:
    """Percentage points with their sign; what rounds to zero is +0.0."""
    return f"{round(100 * share, 1) + 0.0:+.1f}".replace("-", "−")


def _compare(group: Group, name: str, attack: str, against: str = BASELINE) -> Finding:
    arms = [{arm.name: arm for arm in run.arms} for run in group.runs]
    title = _title(group, name)
    diverged = sum(bool(run[name].problem) for run in arms if name in run)
    by_seed = paired(evaluations_of(group, against), evaluations_of(group, name), attack)
    if not by_seed:
        return Finding(name, title, DIVERGED if diverged else PENDING, attack)
    pairs = list(by_seed.values())
    found = paired_difference(pairs, attack)
    low, high = found.interval
    effect = HELPED if low > 0 else HURT if high < 0 else UNCLEAR
    if found.seeds == 1:
        effect = MAYBE.get(effect, effect)
    dead = [second.learned_nothing for _, second in pairs]
    if all(dead) or all(first.learned_nothing for first, _ in pairs):
        effect = DEAD if all(dead) else AGAINST_DEAD
    lost = [f"{diverged} of {len(arms)} seeds diverged"] if diverged else []
    lost += [f"{sum(dead)} of {len(arms)} seeds learned nothing"] if any(dead) and not all(dead) else []
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


def _one(group: Group, findings: Sequence[Finding]) -> Verdict:
    effects: dict[str, list[str]] = {}
    for finding in findings:
        effects.setdefault(finding.so, []).append(finding.arm)
    headline = ", ".join(f"{_listed(arms)} {_plural(effect, len(arms))}" for effect, arms in effects.items())
    compared = [finding for finding in findings if finding.compared]
    first = compared[0]
    measured = "clean accuracy" if first.attack == "clean" else f"accuracy under {first.attack}"
    if len({finding.seeds for finding in compared}) > 1:
        evidence = f"{measured}, means of the seeds at which both are there, is {_listed(f.alone() for f in compared)}"
        return Verdict(headline, evidence, tone=_tone(compared))
    seeds = f", mean of {len(first.seeds)} seeds," if len(first.seeds) > 1 else ""
    if 1 <= len(first.seeds) < len(group.runs):
        seeds = f", at the {len(first.seeds)} of {len(group.runs)} seeds where both are there,"
    evidence = f"{measured}{seeds} is {percent(first.baseline)} with the baseline, {_listed(map(str, compared))}"
    return Verdict(headline, evidence, tone=_tone(compared))


def _many(findings: Sequence[Sequence[Finding]]) -> Verdict:
    counts: dict[str, Counter[str]] = {}
    for found in findings:
        for finding in found:
            counts.setdefault(finding.arm, Counter())[finding.so] += 1
    told = [
        f"{arm} {_listed(f'{effect} in {number}' for effect, number in effects.most_common())}"
        for arm, effects in counts.items()
    ]
    compared = [finding for found in findings for finding in found if finding.compared]
    least, most = (choose(compared, key=lambda finding: finding.difference) for choose in (min, max))
    attacks = _listed(dict.fromkeys(finding.attack for finding in compared))
    evidence = (
        f"paired with the baseline of the same setting under {attacks}, the changes range from "
        f"{signed(least.difference)} points ({least.arm}) to {signed(most.difference)} points ({most.arm})"
    )
    tone = _tone(compared) if len({finding.so for finding in compared}) == 1 else "unclear"
    return Verdict(f"Over {len(findings)} settings, {'; '.join(told)}", evidence, tone=tone)


def _tone(compared: Iterable[Finding]) -> str:
    """A word only where the arms agree; one that helps beside one that hurts is not clear. Controls have no say."""
    own = [finding for finding in compared if not arm_named(finding.name).control]
    effects = {UNCLEAR if finding.unbeaten else finding.effect for finding in own} - {UNCLEAR}
    return effects.pop() if len(effects) == 1 and effects <= {HELPED, HURT} else "unclear"


def _learned_further(group: Group, findings: Sequence[Finding]) -> Iterable[str]:
    """Where an arm that helped has also fitted more training images than the baseline, which is a reason of its own."""
    before = _train_accuracy(group, BASELINE)
    control = "" if "batch" in group.arm_names else " (the arm `batch` has the η/B of 1/L)"
    for finding in (finding for finding in findings if not arm_named(finding.name).control):
        after = _train_accuracy(group, finding.name)
        if finding.effect in HELPFUL and before is not None and after is not None and after > before + FURTHER:
            yield (
                f"{finding.arm} has also learned further, {percent(after)} of the training images, the baseline "
                f"{percent(before)}: it may have helped by that alone. Give the baseline more epochs, or smaller "
                f"batches{control}, and see."
            )


def _unfinished(group: Group) -> Iterable[str]:
    """Where the baseline stands as those did for which a larger rate helped."""
    fitted, batch = _train_accuracy(group, BASELINE), group.experiment.training.batch_size
    if group.experiment.trains_plainly and batch >= LARGE_BATCH and fitted is not None and fitted < UNFINISHED:
        yield (
            f"The baseline has fitted {percent(fitted)} of the training images, in batches of {batch:,}. Where one had "
            "not finished in such batches, rates of 1/(2L) to 1/L made networks more accurate and mostly more robust, "
            "2/L did not (results.md of the documentation): the arms half and poe try them."
        )


def _train_accuracy(group: Group, name: str) -> float | None:
    known = [found for arm in group.arms(name) if (found := arm.outcome.train_accuracy) is not None]
    return fmean(known) if known else None


def _disagreements(groups: Sequence[Group]) -> Iterable[str]:
    """Where another attack of the same experiment says the opposite."""
    for group in groups if len(groups) == 1 else ():
        others = [attack for attack in group.experiment.attacks if attack != group.experiment.deciding]
        opposite = {HELPED: HURT, HURT: HELPED, MAYBE[HELPED]: MAYBE[HURT], MAYBE[HURT]: MAYBE[HELPED]}
        told = {finding.arm: finding.effect for finding in compare_arms(group)}
        for attack in others:
            turned = [
                finding
                for finding in compare_arms(group, attack)
                if finding.compared and finding.effect == opposite.get(told[finding.arm])
            ]
            if turned:
                words = _listed(f"{finding.arm} {finding.effect} ({signed(finding.difference)})" for finding in turned)
                yield f"The attacks disagree: under {attack}, {words}."


def _cautions(groups: Sequence[Group], findings: Sequence[Sequence[Finding]]) -> tuple[str, ...]:
    runs = [run for group in groups for run in group.runs]
    compared = sorted({len(finding.seeds) for found in findings for finding in found if finding.compared})
    cautions = []
    if compared[-1] == 1:
        cautions.append(ONE_TRAINING)
        if len(runs) == 1:
            cautions.append(
                f"A second seed costs about {duration(spent(runs[0]))}: run it again with --set seed="
                f"{runs[0].experiment.seed + 1} and another --out, then `excite report` on both folders."
            )
    elif len(groups) == 1:
        cautions.append(
            f"Paired by test image and by seed: the intervals cover the luck of both, over "
            f"{' or '.join(map(str, compared))} seeds{'; with one, of the images alone' if compared[0] == 1 else ''}."
        )
    if len(groups) > 1:
        cautions.append("Of many 95% intervals, one in twenty misses by chance.")
    vague = dict.fromkeys(name for run in runs for name, found in relied_on(run).items() if not found.identified)
    cautions += map(NOT_IDENTIFIED.format, vague)
    return tuple(cautions)


def _refuted(groups: Sequence[Group]) -> Iterable[str]:
    """What trainings have shown against the L that their rates came from."""
    runs = [run for group in groups for run in group.runs]
    against = [refuted(run) for run in runs]
    for name in dict.fromkeys(name for found in against for name in found):
        words = [found[name] for found in against if name in found]
        more = f" (and so in {len(words)} of {len(runs)} runs)" if len(runs) > 1 else ""
        yield f"{name} is off: {words[0]}{more}."


def spent(run: RunFolder) -> float:
    """What a run took: its estimate, its trainings, its attacks."""
    evaluations = [one for arm in run.arms for one in (arm.evaluation, arm.best.evaluation) if one]
    attacks = sum(evaluation.cost.seconds for evaluation in evaluations)
    return run.estimate_seconds + sum(arm.outcome.seconds for arm in run.arms) + attacks


def _plural(effect: str, number: int) -> str:
    return effect.replace("is ", "are ") if number > 1 else effect


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
