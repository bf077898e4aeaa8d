"""Figure 3: clean and robust accuracy after every epoch, a line per arm."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from excite.errors import InputError
from excite.report.figures import style
from excite.runs.collection import same_but, titles
from excite.runs.folder import RunFolder, arm_titles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLEAN, ATTACKED_CLEAN = "test_accuracy", "attacked_clean_accuracy"  # the latter of the images that are attacked
ROBUST, HELD_OUT = "robust_accuracy", "held_out_accuracy"  # the latter chose the best weights
PANELS = 2
MARKED_EPOCHS = 8


def figure_3(runs: Sequence[RunFolder]) -> "Figure":
    """A row of two panels per experiment; over seeds the mean and the range.

    Where epochs were not attacked on test images, the robust accuracy is that on held-out training images.
    """
    groups = same_but(lambda experiment: experiment, (run for run in runs if _measured(run)))
    if not groups:
        raise InputError(
            "figure-3 needs runs whose epochs were attacked. Train with --set record.attacked_examples=100, in a "
            "new folder: `excite run figure-3-small` does; or with record.best_every."
        )
    figure, all_axes = style.panels(len(groups), PANELS, width=4.6, height=3.2)
    for row, (group, title) in enumerate(zip(groups, titles(groups), strict=True)):
        same_images = all(ATTACKED_CLEAN in epoch.extra for run in group for arm in run.arms for epoch in arm.epochs)
        attack = next(iter(group[0].experiment.attacks), "attack")
        robust = ROBUST if any(_has(run, ROBUST) for run in group) else HELD_OUT
        clean = ATTACKED_CLEAN if same_images else CLEAN
        for column, (key, measure) in enumerate({clean: "clean accuracy", robust: "robust accuracy"}.items()):
            axes = all_axes[row * PANELS + column]
            for name, title_of_arm in arm_titles(group).items():
                colour, marker = style.look(name)
                points = _per_epoch(group, name, key)
                style.mean_and_range(axes, points, colour=colour, marker=marker, name=title_of_arm)
                axes.lines[-1].set_markevery(max(1, len(points) // MARKED_EPOCHS))
            style.whole_epochs(axes)
            style.label(
                axes, "epoch", f"{measure} (%, {_images(group[0], key)})", f"{title}; {attack}" if column else title
            )
    style.legend_below(figure, all_axes)
    return figure


def _images(run: RunFolder, key: str) -> str:
    """Of which images an epoch's accuracy is: all test images, the first of them, or others."""
    record = run.experiment.record
    if key == HELD_OUT:
        return f"{record.held_out_examples:,} held-out images"
    first = record.test_examples if key == CLEAN else record.attacked_examples
    there = run.experiment.data.test_examples or math.inf  # as many as the data set has
    return f"first {first:,} test images" if 0 < first < there else "all test images"


def _measured(run: RunFolder) -> bool:
    return _has(run, ROBUST) or _has(run, HELD_OUT)


def _has(run: RunFolder, key: str) -> bool:
    return any(key in metrics.extra for arm in run.arms for metrics in arm.epochs)


def _per_epoch(group: Sequence[RunFolder], name: str, key: str) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for run in group:
        for arm in run.arms:
            for metrics in arm.epochs if arm.name == name else ():
                if key in metrics.extra:
                    found.setdefault(metrics.epoch, []).append(100 * metrics.extra[key])
    return found
