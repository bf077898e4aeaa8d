"""The conclusion in a few words: did 1/L or 2/L help, by how much, and how sure are we."""

from excite.evaluation import Evaluation
from excite.evaluation.comparison import Comparison, compare
from excite.experiments.results import ArmResult, Results

CAUTION = "One training per arm: the intervals cover the choice of test images, not the luck of a training run."


def verdict(results: Results) -> str:
    """Each arm against the baseline under the experiment's first attack, paired by test image."""
    arms = {arm.name: arm for arm in results.arms}
    baseline = arms["baseline"].evaluation if "baseline" in arms else None
    others = [arm for arm in results.arms if arm.name != "baseline"]
    if baseline is None or not baseline.attacks or not others:
        return "There is nothing to compare yet."
    attack = next(iter(baseline.attacks))
    findings = "; ".join(_finding(arm, baseline, attack) for arm in others)
    return f"{attack}, against the baseline's {100 * baseline.robust[attack].value:.1f}%: {findings}. {CAUTION}"


def _finding(arm: ArmResult, baseline: Evaluation, attack: str) -> str:
    if arm.evaluation is None:
        return f"{arm.title} diverged" if arm.problem else f"{arm.title} is not evaluated yet"
    return f"{arm.title} {_words(compare(baseline, arm.evaluation, attack))}"


def _words(comparison: Comparison) -> str:
    low, high = comparison.interval
    conclusion = "more robust" if low > 0 else "less robust" if high < 0 else "no clear difference"
    return f"{100 * comparison.difference:+.1f} points (95% {100 * low:+.1f} to {100 * high:+.1f}), {conclusion}"
