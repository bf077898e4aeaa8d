"""The table of a run: a row per arm, with intervals, and where the time went."""

from excite.evaluation import Accuracy, Evaluation
from excite.report import labels
from excite.report.tables.study_table import BEST_MEANS
from excite.report.tables.text import prose, text_table
from excite.report.verdict import verdict
from excite.runs.arms import arm_named
from excite.runs.folder import ArmFolder, RunFolder


def table(results: RunFolder) -> str:
    """The rows as text, with L below them."""
    examples = next((arm.evaluation.clean.total for arm in results.arms if arm.evaluation), 0)
    notes = [verdict(results), f"Accuracies on {examples} test images, in brackets their 95% interval (Wilson)."]
    if _has_best(results):
        notes.append(BEST_MEANS)
    if results.estimate:
        notes.append(f"{results.estimate} Estimated in {results.estimate_seconds:.1f} s.")
    if any(arm_named(arm.name).multiple for arm in results.arms):
        notes.append(labels.POE)
    notes += [f"{labels.arm_title([arm])}: {arm.problem}" for arm in results.arms if arm.problem]
    notes += [
        f"{arm.title}, do not trust this yet: {flag}"
        for arm in results.arms
        if arm.evaluation
        for flag in arm.evaluation.flags
    ]
    body = text_table(_columns(results), [_row(results, arm) for arm in results.arms])
    return "\n".join([body, "", *map(prose, notes)])


def _columns(results: RunFolder) -> list[str]:
    images = ["clean", *results.experiment.attacks]
    best = [f"best: {name} %" for name in images] if _has_best(results) else []
    medians = [f"median minimal ε, {name}" for name in _at_several_radii(results)]
    return ["arm", "rate η¹", *(f"{name} %" for name in images), *best, *medians, "train s", "attack s"]


def _has_best(results: RunFolder) -> bool:
    return any(arm.best.evaluation for arm in results.arms)


def _at_several_radii(results: RunFolder) -> list[str]:
    """The attacks that made a curve."""
    return list(dict.fromkeys(name for arm in results.arms if arm.evaluation for name in arm.evaluation.curves))


def _row(results: RunFolder, arm: ArmFolder) -> list[str]:
    evaluation = arm.evaluation
    verdicts = _verdicts(results, arm, evaluation)
    if _has_best(results):
        verdicts += _verdicts(results, arm, arm.best.evaluation)
    curves = evaluation.curves if evaluation else {}
    medians = [str(curves[name].median) if name in curves else "–" for name in _at_several_radii(results)]
    attack_seconds = f"{evaluation.cost.seconds:.1f}" if evaluation else "–"
    return [labels.arm_title([arm]), f"{arm.rate:.4g}", *verdicts, *medians, f"{arm.seconds:.1f}", attack_seconds]


def _verdicts(results: RunFolder, arm: ArmFolder, evaluation: Evaluation | None) -> list[str]:
    if evaluation:
        return [_percent(evaluation.clean), *map(_percent, evaluation.robust.values())]
    return ["diverged" if arm.problem else "–"] * (1 + len(results.experiment.attacks))


def _percent(accuracy: Accuracy) -> str:
    low, high = accuracy.interval
    return f"{100 * accuracy.value:.1f} ({100 * low:.1f}–{100 * high:.1f})"
