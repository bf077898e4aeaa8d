"""Figure 2: clean and robust accuracy against a constant learning rate, 1/L and the edge 2/L marked."""

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from excite.errors import InputError
from excite.report.figures import style
from excite.runs.collection import same_but, titles, without_rate
from excite.runs.folder import ArmFolder, RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {1: "1/L", 2: "edge, 2/L"}


def figure_2(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per network; every arm of a run is a training at one rate; over seeds the mean and the range."""
    constant = [run for run in runs if run.experiment.training.schedule["kind"] == "constant"]
    groups = [group for group in same_but(without_rate, constant) if len(_rates(group)) > 1]
    if not groups:
        raise InputError(
            "figure-2 needs evaluated runs of one network at two constant rates or more. Try `excite sweep "
            'figure-2-relu-small`, or set training.schedule to { kind = "constant", rate = … } and run at several '
            "rates."
        )
    figure, all_axes = style.panels(1, len(groups), width=4.8, height=3.6)
    for group, axes, title in zip(groups, all_axes, titles(groups), strict=True):
        _draw(axes, group)
        style.label(axes, "constant learning rate η (no unit, log scale)", "accuracy on test images (%)", title)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _draw(axes: "Axes", group: Sequence[RunFolder]) -> None:
    trained = _trained(group)
    attacks = dict.fromkeys(name for arm in trained if arm.evaluation for name in arm.evaluation.attacks)
    for name, (colour, marker) in zip(("clean", *attacks), cycle(style.LOOKS), strict=False):
        style.mean_and_range(axes, _accuracies(trained, name), colour=colour, marker=marker, name=name)
    if lost := [arm.rate for arm in trained if arm.problem]:
        axes.plot(lost, [0.0] * len(lost), "x", color=style.INK, markersize=6, label="diverged", clip_on=False)
    for multiple, name in MARKS.items():
        for line, rate in enumerate(sorted({run.estimate.learning_rate(multiple) for run in group if run.estimate})):
            dashes = (0, (1, 1.5)) if multiple == 1 else (0, (5, 2))
            axes.axvline(rate, color=style.INK, linewidth=1, linestyle=dashes, label=None if line else name)
    rates = [arm.rate for arm in trained]
    axes.set_xscale("log")
    style.log_ticks(axes.xaxis, min(rates), max(rates))
    axes.set_ylim(-2, 102)


def _accuracies(trained: Sequence[ArmFolder], name: str) -> dict[float, list[float]]:
    """In %, by rate; one per seed."""
    found: dict[float, list[float]] = {}
    for arm in trained:
        if arm.evaluation and (name == "clean" or name in arm.evaluation.attacks):
            accuracy = arm.evaluation.clean if name == "clean" else arm.evaluation.robust[name]
            found.setdefault(float(f"{arm.rate:.6g}"), []).append(100 * accuracy.value)
    return found


def _rates(group: Sequence[RunFolder]) -> set[float]:
    return set(_accuracies(_trained(group), "clean"))


def _trained(group: Sequence[RunFolder]) -> list[ArmFolder]:
    """Without controls, whose batches may be of another size."""
    return [arm for run in group for arm in run.arms if not arm.arm.control]
