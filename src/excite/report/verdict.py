"""The conclusion of a report: did 1/L or 2/L help, by how much, and what speaks against that."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from excite.evaluation.comparison import paired_difference
from excite.quantities import duration
from excite.report.comparison import CLEAR, HELPFUL, Effect, Finding, compare, compare_arms
from excite.report.estimates import UNMET, doubted, doubted_together, used_estimates
from excite.report.formats import capitalized, listed, percent, points
from excite.report.rows import BASELINE, CLEAN, Row, arm_names, by_experiment, select
from excite.runs.arms import arm_named, in_order
from excite.runs.folder import RunFolder

# Where larger rates helped, see docs/results.md: unfinished training in large batches, and overfitting.
LARGE_BATCH, FITTED = 1000, 0.95  # images; share of the training images
OVERFITTED = 0.01  # share of the test images that the last weights lose against the best ones
BETTER_FITTED = 0.01  # share of the training images

RESULTS = "see results.md in the documentation"
ONE_SEED = (
    "With one training per arm, the intervals cover the choice of test images, not the variation between trainings."
)
MANY_INTERVALS = "Expect one in twenty of the 95% intervals to miss the true value."


@dataclass(frozen=True)
class Verdict:
    """The conclusion in a headline, the numbers behind it, and what to keep in mind."""

    headline: str
    evidence: str = ""
    cautions: tuple[str, ...] = ()
    tone: str = "unclear"  # helped, hurt, unclear or warning: the color of the page's headline

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.headline}.", self.evidence, *self.cautions]))


def conclude(rows: Sequence[Row]) -> Verdict:
    """The verdict on one experiment, with one seed or several, or on many experiments."""
    experiments = by_experiment(rows)
    by_setting = [compare_arms(experiment) for experiment in experiments]
    findings = [finding for arms in by_setting for finding in arms]
    runs = list(dict.fromkeys(row.run for row in rows))
    only = experiments[0] if len(experiments) == 1 else None
    advice = [*_unfinished(only), *_overfitted(only)] if only else []
    if not any(finding.compared for finding in findings):
        return Verdict(_nothing_compared(only, findings), cautions=(*_doubts(experiments, runs), *advice))
    n_settings = sum(map(bool, by_setting))
    verdict = _verdict_on_one(only, findings) if only else _verdict_on_many(n_settings, findings)
    further = [*_better_fitted(only, findings), *advice, *_disagreements(only)] if only else []
    cautions = [*_doubts(experiments, runs), *further, *_limits(rows, findings, single_setting=bool(only))]
    return _with_warnings(replace(verdict, cautions=tuple(cautions)), rows, findings if only else [])


def _nothing_compared(only: Sequence[Row] | None, findings: Sequence[Finding]) -> str:
    diverged = [finding.arm for finding in findings if finding.effect is Effect.DIVERGED]
    if only and any(row.arm.problem for row in select(only, BASELINE)):
        diverged.insert(0, "the baseline")
    return capitalized(f"{listed(diverged)} diverged") if only and diverged else "There is nothing to compare yet"


def _verdict_on_one(rows: Sequence[Row], findings: Sequence[Finding]) -> Verdict:
    arms: dict[str, list[str]] = {}  # by conclusion
    for finding in findings:
        arms.setdefault(finding.conclusion, []).append(finding.arm)
    headline = capitalized("; ".join(f"{listed(names)} {conclusion}" for conclusion, names in arms.items()))
    compared = [finding for finding in findings if finding.compared]
    first, n_runs = compared[0], len(rows[0].group.runs)
    measure = "Clean accuracy" if first.images == CLEAN else f"Accuracy under {first.images}"
    if len({finding.seeds for finding in compared}) > 1:
        each = (
            f"{_measured(finding)}, against {percent(finding.baseline)} for the baseline at "
            f"seed{'s' * (len(finding.seeds) > 1)} {listed(map(str, finding.seeds))}"
            for finding in compared
        )
        return Verdict(headline, f"{measure}, over the seeds with both: {'; '.join(each)}.", tone=_tone(compared))
    seeds = f", mean of {n_runs} seeds" if n_runs > 1 else ""
    if len(first.seeds) < n_runs:
        seeds = f", over the {len(first.seeds)} of {n_runs} seeds with both"
    numbers = [f"{percent(first.baseline)} for the baseline", *map(_measured, compared)]
    return Verdict(headline, f"{measure}{seeds}: {listed(numbers)}.", tone=_tone(compared))


def _measured(finding: Finding) -> str:
    low, high = map(points, finding.interval)
    details = f"{points(finding.difference)} points, 95% interval {low} to {high}"
    failures = f"; {finding.failures}" if finding.failures else ""
    return f"{percent(finding.value)} for {finding.arm} ({details}{failures})"


def _verdict_on_many(n_settings: int, findings: Sequence[Finding]) -> Verdict:
    counts: dict[str, Counter[str]] = {}
    for finding in findings:
        counts.setdefault(finding.arm, Counter())[finding.conclusion] += 1
    arms = [
        f"{arm} {listed(f'{conclusion} in {number}' for conclusion, number in conclusions.most_common())}"
        for arm, conclusions in counts.items()
    ]
    compared = sorted((finding for finding in findings if finding.compared), key=lambda finding: finding.difference)
    attacks = listed(dict.fromkeys(finding.images for finding in findings if finding.compared))
    least, most = (f"{points(finding.difference)} points ({finding.arm})" for finding in (compared[0], compared[-1]))
    evidence = f"Under {attacks}, differences from the baseline of the same setting range from {least} to {most}."
    tone = _tone(compared) if len({finding.conclusion for finding in compared}) == 1 else "unclear"
    return Verdict(f"Over {n_settings} settings, {'; '.join(arms)}", evidence, tone=tone)


def _tone(compared: Iterable[Finding]) -> str:
    """The effect that all arms with a clear effect share. Controls do not count."""
    effects = {
        Effect.UNCLEAR if finding.unbeaten else finding.effect
        for finding in compared
        if not arm_named(finding.name).control
    } - {Effect.UNCLEAR}
    return str(effects.pop()) if len(effects) == 1 and effects <= {Effect.HELPED, Effect.HURT} else "unclear"


def _with_warnings(verdict: Verdict, rows: Sequence[Row], findings: Sequence[Finding]) -> Verdict:
    """The verdict with the warnings of trust checks; those on a control leave the headline as it is.

    The true accuracy under attack of an arm with a warning may be lower, and a weaker control only helps the arm.
    """
    warnings = {
        f"“{flag.name}” ({row.arm.short_title})": row.arm.arm
        for group in by_experiment(select(rows))
        for row in sorted(group, key=lambda row: row.seed)
        if row.arm.evaluation
        for flag in row.arm.evaluation.flags
    }
    if not warnings:
        return verdict
    cautions = (f"Trust checks warn: {', '.join(warnings)}.", *verdict.cautions)
    suspects = {arm.name for arm in warnings.values() if not arm.control}
    if not suspects:
        return replace(verdict, cautions=cautions)
    others = [finding for finding in findings if finding.compared and finding.name not in suspects]
    if any(not arm_named(finding.name).control for finding in others) and BASELINE not in suspects:
        names = listed(finding.arm for finding in findings if finding.name in suspects)
        headline = f"{verdict.headline}; do not trust the accuracy of {names} yet"
    else:
        headline = f"Do not trust this yet: {verdict.headline}"
    return replace(verdict, headline=headline, cautions=cautions, tone="warning")


def _doubts(experiments: Sequence[Sequence[Row]], runs: Sequence[RunFolder]) -> Iterator[str]:
    """What the trainings say against each L that their rates came from."""
    single = [doubted(run) for run in runs]
    together = {name: why for rows in experiments for name, why in doubted_together(rows[0].group.runs).items()}
    for name in dict.fromkeys([*(name for doubts in single for name in doubts), *together]):
        reasons = [doubts[name] for doubts in single if name in doubts]
        where = f" in {len(reasons)} of {len(runs)} runs" if len(runs) > 1 and reasons else ""
        yield f"{name} is in doubt{where}: {reasons[0] if reasons else together[name]}."


def _better_fitted(rows: Sequence[Row], findings: Sequence[Finding]) -> Iterator[str]:
    """An arm that helped and also fitted more training images than the baseline may have helped by that alone."""
    before = _train_accuracy(rows, BASELINE)
    control = "" if "batch" in arm_names(rows) else " (the arm `batch` keeps the η/B of 1/L)"
    for finding in findings:
        after = _train_accuracy(rows, finding.name)
        if finding.effect not in HELPFUL or arm_named(finding.name).control or before is None or after is None:
            continue
        if after > before + BETTER_FITTED:
            yield (
                f"{finding.arm} also fitted more of the training images ({percent(after)}, the baseline "
                f"{percent(before)}), which may be why it helped. To find out, train the baseline for more epochs or "
                f"in smaller batches{control}."
            )


def _unfinished(rows: Sequence[Row]) -> Iterator[str]:
    """Advice for large batches in which the baseline has learned something, but has not finished."""
    experiment, fitted = rows[0].group.experiment, _train_accuracy(rows, BASELINE)
    learned = not any(row.arm.evaluation and row.arm.evaluation.learned_nothing for row in select(rows, BASELINE))
    large = experiment.trains_plainly and experiment.training.batch_size >= LARGE_BATCH
    if learned and large and fitted is not None and fitted < FITTED:
        yield (
            f"The baseline fitted only {percent(fitted)} of the training images, in batches of "
            f"{experiment.training.batch_size:,}. In such cases, rates of 1/(2L) to 1/L made networks more accurate "
            f"and mostly more robust; 2/L did not ({RESULTS}).{_to_try(rows, 'half', 'poe')}"
        )


def _overfitted(rows: Sequence[Row]) -> Iterator[str]:
    """Advice for adversarial training in which the baseline was more robust before the end."""
    experiment = rows[0].group.experiment
    baseline = select(rows, BASELINE, experiment.deciding)
    last_and_best = [
        (last, best)
        for row in baseline
        if (last := row.evaluation()) and (best := row.evaluation(best=True))
        if row.accuracy() and row.accuracy(best=True)
    ]
    if experiment.trains_plainly or not last_and_best:
        return
    lost = paired_difference(last_and_best, experiment.deciding).difference
    if lost >= OVERFITTED:
        yield (
            f"The baseline overfits: under {experiment.deciding} its best weights are {100 * lost:.1f} points more "
            "accurate than its last ones. In such cases, 1/L made the last weights more robust without loss of clean "
            "accuracy; the baseline's rate in smaller batches, with the η/B of 1/L, gained at least half as much "
            f"({RESULTS}).{_to_try(rows, 'poe', 'batch')}"
        )


def _to_try(rows: Sequence[Row], *names: str) -> str:
    untried = [name for name in names if name not in arm_names(rows)]
    return f" To try: --arms {','.join([BASELINE, *untried])}." if untried else ""


def _train_accuracy(rows: Sequence[Row], name: str) -> float | None:
    known = [share for row in select(rows, name) if (share := row.arm.outcome.train_accuracy) is not None]
    return fmean(known) if known else None


def _disagreements(rows: Sequence[Row]) -> Iterator[str]:
    """Clear effects that are reversed under another attack, or with the best weights."""
    experiment = rows[0].group.experiment
    clear = {finding.name: finding.difference for finding in compare_arms(rows) if finding.effect in CLEAR}
    others = {
        f"The attacks disagree: under {attack}": [compare(rows, name, attack) for name in clear]
        for attack in experiment.attacks
        if attack != experiment.deciding
    }
    others["The best and the last weights disagree: with the best weights"] = [
        compare(rows, name, experiment.deciding, best=True) for name in clear
    ]
    for where, findings in others.items():
        reversed_ = [
            finding for finding in findings if finding.effect in CLEAR and finding.difference * clear[finding.name] < 0
        ]
        if reversed_:
            arms = listed(
                f"{finding.arm} {finding.effect} ({points(finding.difference)} points)" for finding in reversed_
            )
            yield f"{where}, {arms}."


def _limits(rows: Sequence[Row], findings: Sequence[Finding], *, single_setting: bool) -> Iterator[str]:
    """What the numbers do not cover."""
    runs = list(dict.fromkeys(row.run for row in rows))
    estimates = [(name, estimate) for run in runs for name, estimate in used_estimates(run).items()]
    vague = dict.fromkeys(name for name, estimate in estimates if not estimate.reliable)
    for name in vague:
        yield f"{name} is not identified, so 1/L and 2/L are not reliable rates; the estimate says why."
    unmet = {row.name: row.arm for row in reversed(select(rows)) if row.arm.arm.multiple and row.premise_met is False}
    for name in in_order(set(unmet)):
        arm = unmet[name]
        slopes = UNMET.format(1 / arm.rate, arm.certified.largest_slope if arm.certified else None)
        yield f"The theorem does not apply at {arm.short_title}: {slopes}"
    seeds = sorted({len(finding.seeds) for finding in findings if finding.compared})
    if seeds[-1] == 1:
        yield ONE_SEED
        if len(runs) == 1 and not vague:
            yield (
                f"A second seed takes about {duration(runs[0].seconds)}: run again with --set seed="
                f"{runs[0].experiment.seed + 1} and another --out, then `excite report` on both folders."
            )
    elif single_setting:
        images_only = "; with one seed, of the images only" if seeds[0] == 1 else ""
        yield (
            "The differences are paired by test image and seed, and the intervals cover the variation of both "
            f"({' or '.join(map(str, seeds))} seeds{images_only})."
        )
    if not single_setting:
        yield MANY_INTERVALS
