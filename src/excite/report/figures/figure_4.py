"""Figure 4: in how many epochs Assumption 2 holds, against the batch size."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from excite.errors import InputError
from excite.report.figures import style
from excite.runs.collection import same_but, titles, without_batch_size
from excite.runs.folder import RunFolder, arm_titles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fractions = dict[str, dict[float, list[float]]]  # by arm and batch size: in %, one per seed


def figure_4(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per network, a line per arm; over seeds the mean and the range."""
    read = [(group, _fractions(group)) for group in same_but(without_batch_size, runs)]
    groups = [(group, fractions) for group, fractions in read if len(_sizes(fractions)) > 1]
    if not groups:
        raise InputError(
            "figure-4 needs certified trainings of one network at two batch sizes or more, of three epochs or more. "
            "Try `excite sweep figure-4-small`, or `excite batch-size EXPERIMENT --try 32 128 512`; `excite train "
            "RUN` certifies what older versions trained."
        )
    figure, all_axes = style.panels(1, len(groups), width=4.8, height=3.4)
    for (group, fractions), axes, title in zip(groups, all_axes, titles([group for group, _ in groups]), strict=True):
        names = arm_titles(group)
        for name, points in fractions.items():
            colour, marker = style.look(name)
            style.mean_and_range(axes, points, colour=colour, marker=marker, name=names[name])
        sizes = _sizes(fractions)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_xticks([], minor=True)
        axes.set_ylim(-3, 103)
        style.label(axes, "batch size (images, log scale)", "epochs where Assumption 2 holds (%)", title)
    style.legend_below(figure, all_axes)
    return figure


def _fractions(group: Sequence[RunFolder]) -> Fractions:
    found: Fractions = {}
    for run in group:
        for arm in run.arms:
            if arm.certified:
                shares = found.setdefault(arm.name, {})
                size = float(arm.outcome.batch_size or run.experiment.training.batch_size)
                shares.setdefault(size, []).append(100 * arm.certified.acute / arm.certified.steps)
    return found


def _sizes(fractions: Fractions) -> list[float]:
    return sorted({size for points in fractions.values() for size in points})
