"""The conclusion in one sentence: did 1/L or 2/L help, by how much, and how sure are we."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from excite.evaluation.comparison import paired_difference
from excite.quantities import duration
from excite.report.findings import (
    BASELINE,
    CLEAR,
    DIVERGED,
    HELPED,
    HELPFUL,
    HURT,
    UNCLEAR,
    Finding,
    compare,
    compare_arms,
    listed,
    percent,
    signed,
)
from excite.report.tables.study_columns import evaluations_of, paired
from excite.report.trainings import doubted, doubted_together, relied_on, unmet_premises
from excite.runs.arms import Arm, arm_named
from excite.runs.collection import Group, by_seed
from excite.runs.folder import RunFolder

LARGE_BATCH, UNFINISHED = 1000, 0.95  # images, and of the training images: docs/results.md, A and C
OVERFITTED = 0.01  # of the test images: docs/results.md, D
FURTHER = 0.01  # of the training images: by so much more an arm has fitted, it has learned further

PLURALS = {"is": "are", "was": "were", "has": "have"}
NOTHING = "There is nothing to compare yet"
ONE_TRAINING = "One training per arm: the intervals cover the choice of test images, not the luck of a training run."
NOT_IDENTIFIED = "{} is not identified, so 1/L and 2/L are not reliable rates; the line of the estimate says why."


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
        if len(groups) == 1 and any(arm.problem for arm in groups[0].arms(BASELINE)):
            diverged.insert(0, "the baseline")
        headline = f"{listed(dict.fromkeys(diverged))} diverged" if diverged and len(groups) == 1 else NOTHING
        return Verdict(_begun(headline), cautions=(*_doubted(groups), *_where_rates_helped(groups)))
    told = _one(groups[0], findings[0]) if len(groups) == 1 else _many(findings)
    further = _learned_further(groups[0], findings[0]) if len(groups) == 1 else ()
    helped = _where_rates_helped(groups)
    cautions = (*_doubted(groups), *further, *helped, *_disagreements(groups), *_cautions(groups, findings))
    if doubted := {words: arm for group in groups for words, arm in distrusted(group).items()}:
        cautions = (f"Trust checks warn: {', '.join(doubted)}.", *cautions)
    names = {arm.name for arm in doubted.values() if not arm.control}  # a control would, if anything, do less
    if not names:
        return Verdict(told.headline, told.evidence, cautions, told.tone)
    if len(groups) == 1 and BASELINE not in names and any(_stands(finding, names) for finding in findings[0]):
        suspects = listed(finding.arm for finding in findings[0] if finding.name in names)
        headline = f"{told.headline}; the accuracy of {suspects} is not to be trusted yet"
        return Verdict(headline, told.evidence, cautions, "warning")
    headline = f"Not to be trusted yet; as measured, {told.headline[0].lower()}{told.headline[1:]}"
    return Verdict(headline, told.evidence, cautions, "warning")


def _stands(finding: Finding, doubted: Collection[str]) -> bool:
    """Whether it is of an arm that is neither doubted nor a control."""
    return finding.compared and finding.name not in doubted and not arm_named(finding.name).control


def distrusted(group: Group) -> dict[str, Arm]:
    """The trust checks that warned, in words, and the arm that each warned of."""
    return {
        f"“{flag.name}” ({arm.short_title})": arm.arm
        for run in group.runs
        for arm in run.arms
        if arm.evaluation
        for flag in arm.evaluation.flags
    }


def _one(group: Group, findings: Sequence[Finding]) -> Verdict:
    effects: dict[str, list[str]] = {}
    for finding in findings:
        effects.setdefault(finding.so, []).append(finding.arm)
    headline = _begun(", ".join(f"{listed(arms)} {_plural(effect, len(arms))}" for effect, arms in effects.items()))
    compared = [finding for finding in findings if finding.compared]
    first = compared[0]
    measured = "clean accuracy" if first.attack == "clean" else f"accuracy under {first.attack}"
    if len({finding.seeds for finding in compared}) > 1:
        evidence = f"{measured}, means of the seeds at which both are there, is {listed(f.alone() for f in compared)}"
        return Verdict(headline, evidence, tone=_tone(compared))
    seeds = f", mean of {len(first.seeds)} seeds," if len(first.seeds) > 1 else ""
    if 1 <= len(first.seeds) < len(group.runs):
        seeds = f", at the {len(first.seeds)} of {len(group.runs)} seeds where both are there,"
    evidence = f"{measured}{seeds} is {percent(first.baseline)} with the baseline, {listed(map(str, compared))}"
    return Verdict(headline, evidence, tone=_tone(compared))


def _many(findings: Sequence[Sequence[Finding]]) -> Verdict:
    counts: dict[str, Counter[str]] = {}
    for found in findings:
        for finding in found:
            counts.setdefault(finding.arm, Counter())[finding.so] += 1
    told = [
        f"{arm} {listed(f'{effect} in {number}' for effect, number in effects.most_common())}"
        for arm, effects in counts.items()
    ]
    compared = [finding for found in findings for finding in found if finding.compared]
    least, most = (choose(compared, key=lambda finding: finding.difference) for choose in (min, max))
    attacks = listed(dict.fromkeys(finding.attack for finding in compared))
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


def _where_rates_helped(groups: Sequence[Group]) -> Iterable[str]:
    """To one experiment whose baseline stands as those did for which a larger rate helped."""
    if len(groups) == 1:
        yield from _unfinished(groups[0])
        yield from _overfits(groups[0])


def _unfinished(group: Group) -> Iterable[str]:
    """In large batches, where the baseline has not finished; one that learned nothing has not begun."""
    if any(arm.evaluation and arm.evaluation.learned_nothing for arm in group.arms(BASELINE)):
        return
    fitted, batch = _train_accuracy(group, BASELINE), group.experiment.training.batch_size
    if group.experiment.trains_plainly and batch >= LARGE_BATCH and fitted is not None and fitted < UNFINISHED:
        yield (
            f"The baseline has fitted {percent(fitted)} of the training images, in batches of {batch:,}. Where one had "
            "not finished in such batches, rates of 1/(2L) to 1/L made networks more accurate and mostly more robust, "
            f"2/L did not (results.md of the documentation).{_to_try(group, 'half', 'poe')}"
        )


def _overfits(group: Group) -> Iterable[str]:
    """In adversarial training, where the baseline's robustness was better before the end."""
    attack = group.experiment.deciding
    best, last = (evaluations_of(group, BASELINE, best=best) for best in (True, False))
    pairs = [] if group.experiment.trains_plainly else list(paired(last, best, attack).values())
    lost = paired_difference(pairs, attack).difference if pairs else 0.0
    if lost >= OVERFITTED:
        yield (
            f"The baseline's best weights keep {100 * lost:.1f} points more than its last under {attack}: it overfits. "
            "Where adversarial training did so, 1/L made the last weights more robust at no less clean accuracy; the "
            "baseline's rate in batches with the η/B of 1/L did so by half as much or more (results.md of the "
            f"documentation).{_to_try(group, 'poe', 'batch')}"
        )


def _to_try(group: Group, *names: str) -> str:
    """How to train those of the arms that were not, and what they are held against."""
    untried = [name for name in names if name not in group.arm_names]
    return f" To try: --arms {','.join([BASELINE, *untried])}." if untried else ""


def _train_accuracy(group: Group, name: str) -> float | None:
    known = [found for arm in group.arms(name) if (found := arm.outcome.train_accuracy) is not None]
    return fmean(known) if known else None


def _disagreements(groups: Sequence[Group]) -> Iterable[str]:
    """Where another attack of the same experiment says the opposite, or the best weights do."""
    for group in groups if len(groups) == 1 else ():
        decides = group.experiment.deciding
        told = {finding.name: finding.difference for finding in compare_arms(group) if finding.effect in CLEAR}
        looks = {
            f"The attacks disagree: under {attack}": [compare(group, name, attack) for name in told]
            for attack in group.experiment.attacks
            if attack != decides
        }
        looks["Best and last weights disagree: with the best ones"] = [
            compare(group, name, decides, best=True) for name in told
        ]
        for where, findings in looks.items():
            turned = [one for one in findings if one.effect in CLEAR and one.difference * told[one.name] < 0]
            if turned:
                yield f"{where}, {listed(f'{one.arm} {one.effect} ({signed(one.difference)})' for one in turned)}."


def _cautions(groups: Sequence[Group], findings: Sequence[Sequence[Finding]]) -> tuple[str, ...]:
    runs = [run for group in groups for run in group.runs]
    compared = sorted({len(finding.seeds) for found in findings for finding in found if finding.compared})
    vague = dict.fromkeys(name for run in runs for name, found in relied_on(run).items() if not found.reliable)
    cautions = [*map(NOT_IDENTIFIED.format, vague), *unmet_premises(runs)]
    if compared[-1] == 1:
        cautions.append(ONE_TRAINING)
        if len(runs) == 1 and not vague:
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
    return tuple(cautions)


def _doubted(groups: Sequence[Group]) -> Iterable[str]:
    """What trainings say against the L that their rates came from."""
    runs = [run for group in groups for run in group.runs]
    against = [doubted(run) for run in runs]
    together = {name: words for group in groups for name, words in doubted_together(group.runs).items()}
    for name in dict.fromkeys([name for found in against for name in found] + [*together]):
        words = [found[name] for found in against if name in found]
        more = f" (and so in {len(words)} of {len(runs)} runs)" if len(runs) > 1 and words else ""
        yield f"{name} is in doubt: {words[0] if words else together[name]}{more}."


def spent(run: RunFolder) -> float:
    """The time that all stages of a run took."""
    return run.seconds


def _begun(sentence: str) -> str:
    return f"{sentence[0].upper()}{sentence[1:]}"


def _plural(effect: str, number: int) -> str:
    return re.sub(r"\b(is|was|has)\b", lambda word: PLURALS[word[0]], effect) if number > 1 else effect
