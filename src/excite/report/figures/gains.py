"""What every arm gains on the baseline, in points, with its interval: last weights and, where they were kept, best."""

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from excite.errors import InputError
from excite.evaluation.comparison import paired_difference
from excite.report.figures import style
from excite.report.tables.study_columns import StudyArm, arms_of, paired
from excite.runs.collection import by_seed, titles
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOM = 0.7  # of the height between two arms, for what was measured of one


def gains(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per experiment, a row per arm; a small dot is one seed, a large one their mean with its 95% interval."""
    groups = [group for group in by_seed(runs) if len(_judged(arms_of(group, ""))) > 1]
    if not groups:
        raise InputError(
            "gains needs runs whose baseline and another arm were both evaluated. Try `excite run mnist-sample`."
        )
    rows = max(len(group.arm_names) for group in groups)
    figure, all_axes = style.panels(1, len(groups), width=5.2, height=1.6 + 0.75 * rows)
    for group, axes, title in zip(groups, all_axes, titles([group.runs for group in groups]), strict=True):
        baseline, *others = _judged(arms_of(group, ""))
        _draw(axes, baseline, others)
        style.label(axes, "points gained (95% interval)", "arm (its rate η)", title)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _judged(arms: Sequence[StudyArm]) -> list[StudyArm]:
    """The baseline first; nothing without it."""
    judged = {arm.name: arm for arm in arms if arm.evaluations}
    return [judged.pop("baseline"), *judged.values()] if "baseline" in judged else []


def _draw(axes: "Axes", baseline: StudyArm, others: Sequence[StudyArm]) -> None:
    measures = ["clean", *dict.fromkeys(name for one in baseline.evaluations.values() for name in one.attacks)]
    lines = [(on, best) for on in measures for best in ((False, True) if baseline.best else (False,))]
    looks = dict(zip(measures, cycle(style.LOOKS), strict=False))
    for number, (on, best) in enumerate(lines):
        colour, marker = looks[on]
        offset = ROOM * ((number + 0.5) / len(lines) - 0.5)
        for row, arm in enumerate(others):
            both = (baseline.best, arm.best) if best else (baseline.evaluations, arm.evaluations)
            pairs = list(paired(*both, on).values())
            if not pairs:
                continue
            found, y = paired_difference(pairs, on), row + offset
            gain, low, high = (100 * share for share in (found.difference, *found.interval))
            axes.plot([low, high], [y, y], color=colour, linewidth=1.2)
            name, filling = (f"{on}, best weights", "none") if best else (on, colour)
            axes.plot([gain], [y], marker, color=colour, markerfacecolor=filling, label=name)
            each = [100 * paired_difference([pair], on).difference for pair in pairs]
            axes.plot(each, [y] * len(each), ".", color=colour, markersize=3, alpha=0.6)
    axes.axvline(0, color=style.INK, linewidth=1)
    axes.set_yticks(range(len(others)), [f"{arm.title}\n(η = {rates_of(arm)})" for arm in others])
    axes.set_ylim(len(others) - 0.5, -0.5)


def rates_of(arm: StudyArm) -> str:
    """The one of all seeds, or from where to where theirs go."""
    low, high = (bound(result.rate for result in arm.results) for bound in (min, max))
    return f"{low:.3g}" if high - low <= 1e-9 * high else f"{low:.3g}–{high:.3g}"
