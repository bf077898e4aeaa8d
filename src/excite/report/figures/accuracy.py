"""Figures of accuracy: against the rate, the epoch and the radius of an attack, and what each arm gains."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from excite.errors import InputError
from excite.evaluation.comparison import paired_difference
from excite.quantities import pixels
from excite.report.figures import style
from excite.report.rows import (
    CLEAN,
    Row,
    arm_title,
    arm_titles,
    by_arm,
    by_experiment,
    images_of,
    same_but,
    tidy,
    titles,
)
from excite.report.verdict import Effect, Result, compare_arms
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATES = {"poe": (1, "1/L"), "largest": (2, "2/L")}  # by arm: the multiple of 1/L, and its name
CLEAN_EPOCHS, ATTACKED_CLEAN = "test_accuracy", "attacked_clean_accuracy"  # the latter on the images that are attacked
ROBUST, HELD_OUT = "robust_accuracy", "held_out_accuracy"  # the latter chose the best weights
LOSS = "loss"
MARKED_EPOCHS = 8
REACH = 20  # points to either side of zero, beyond which the summary has a logarithmic scale
ROW, HEADING = 0.23, 3.3  # inches: the height of a row, and the width of a heading
GAINED = "points gained (95% interval)"
HOLLOW = "Hollow: one training per arm; its interval covers the choice of test images only."
NOTHING = "{} needs runs in which the baseline and another arm were evaluated. Try `excite run mnist-sample`."
Blocks = list[tuple[str, list[Result]]]  # a heading, and the arms below it


def figure_2(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per network; each arm of a run is a training at one constant rate. Mean and range over seeds."""
    families = rate_families(run for run in runs if run.experiment.training.schedule["kind"] == "constant")
    if not families:
        raise InputError(
            "figure-2 needs evaluated runs of one network at two or more constant rates. Try `excite sweep "
            'figure-2-relu-small`, or set training.schedule to { kind = "constant", rate = … } and run at several '
            "rates."
        )
    return against_rate(families)


def rate_families(runs: Iterable[RunFolder]) -> list[list[RunFolder]]:
    """Groups of runs that differ in their rate alone, and were evaluated at several."""
    families = same_but(["training.schedule.rate"], runs)
    return [family for family in families if len(_by_rate(_without_controls(family), CLEAN)) > 1]


def against_rate(groups: Sequence[Sequence[RunFolder]]) -> "Figure":
    """Accuracy against the first rate, with 1/L and 2/L; a panel for each group of runs that differ in their rate."""
    figure, all_axes = style.panels(1, len(groups), width=4.8, height=3.6)
    for group, axes, title in zip(groups, all_axes, titles(groups), strict=True):
        _draw_rates(axes, group)
        style.label(axes, "first learning rate η¹ (no unit, log scale)", "accuracy on test images (%)", title)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _draw_rates(axes: "Axes", group: Sequence[RunFolder]) -> None:
    rows, experiment = _without_controls(group), group[0].experiment
    for number, images in enumerate(images_of(rows)):
        look, dashes = style.LOOKS[number % len(style.LOOKS)], style.DASHES[number % len(style.DASHES)]
        style.mean_and_range(axes, _by_rate(rows, images), look, experiment.attack_title(images), dashes)
    rates, diverged = [row.arm.rate for row in rows], [row.arm.rate for row in rows if row.arm.problem]
    if diverged:
        axes.plot(diverged, [0.0] * len(diverged), "x", color=style.INK, markersize=6, label="diverged", clip_on=False)
    for arm, (multiple, name) in RATES.items():
        for line, rate in enumerate(sorted({run.estimate.learning_rate(multiple) for run in group if run.estimate})):
            color, _ = style.look(arm)
            axes.axvline(rate, color=color, linewidth=1.2, linestyle="--", label=None if line else name)
    axes.set_xscale("log")
    style.log_ticks(axes.xaxis, min(rates), max(rates))
    axes.set_ylim(-2, 102)


def _without_controls(group: Sequence[RunFolder]) -> list[Row]:
    """Controls may have another batch size."""
    return [row for run in group for row in tidy([run]) if not row.arm.arm.control]


def _by_rate(rows: Iterable[Row], images: str) -> style.Points:
    points: style.Points = {}
    for row in rows:
        if accuracy := row.accuracy(images):
            points.setdefault(float(f"{row.arm.rate:.6g}"), []).append(100 * accuracy.value)
    return points


def figure_3(runs: Sequence[RunFolder]) -> "Figure":
    """Two panels per experiment: clean and robust accuracy after every epoch. Mean and range over seeds.

    If no epoch was attacked on test images, the robust accuracy is the one on held-out training images.
    """
    groups = same_but([], (run for run in runs if _has(run, ROBUST) or _has(run, HELD_OUT)))
    if not groups:
        raise InputError(
            "figure-3 needs runs that were attacked during training. Train in a new folder with --set "
            "record.attacked_examples=100 or record.best_every, or try `excite run figure-3-small`."
        )
    figure, all_axes = style.panels(len(groups), 2, width=4.6, height=3.2)
    for group, title, left, right in zip(groups, titles(groups), all_axes[::2], all_axes[1::2], strict=True):
        same_images = all(ATTACKED_CLEAN in epoch.extra for run in group for arm in run.arms for epoch in arm.epochs)
        experiment = group[0].experiment
        attack = experiment.attack_title(next(iter(experiment.attacks), "attack"))
        robust = ROBUST if any(_has(run, ROBUST) for run in group) else HELD_OUT
        clean = ATTACKED_CLEAN if same_images else CLEAN_EPOCHS
        for axes, key, name in ((left, clean, "clean"), (right, robust, attack)):
            _draw_epochs(axes, group, key)
            style.label(axes, "epoch", "accuracy (%)", f"{title}\n{name}{' (held-out)' * (key == HELD_OUT)}")
    style.legend_below(figure, all_axes)
    return figure


def _draw_epochs(axes: "Axes", runs: Sequence[RunFolder], key: str) -> bool:
    """A line per arm of a quantity after each epoch; False if no epoch recorded it."""
    from matplotlib.ticker import MaxNLocator

    for name, title in arm_titles(runs).items():
        points: style.Points = {}
        for epoch in (epoch for run in runs for arm in run.arms if arm.name == name for epoch in arm.epochs):
            value = epoch.loss if key == LOSS else 100 * epoch.extra.get(key, math.nan)
            if math.isfinite(value) and (key != LOSS or value > 0):  # which has a log scale
                points.setdefault(epoch.epoch, []).append(value)
        if points:
            style.mean_and_range(axes, points, style.look(name), title)
            axes.lines[-1].set_markevery(max(1, len(points) // MARKED_EPOCHS))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return bool(axes.lines)


def _has(run: RunFolder, key: str) -> bool:
    return any(key in epoch.extra for arm in run.arms for epoch in arm.epochs)


def curves(runs: Sequence[RunFolder]) -> dict[str, "Figure"]:
    """For the page: the training loss and the accuracies after every epoch, each with a title, if recorded."""
    quantities = {
        "Training loss (nats, log scale)": LOSS,
        "Clean test accuracy (%)": CLEAN_EPOCHS,
        "Robust test accuracy (%)": ROBUST,
    }
    charts = {}
    for title, key in quantities.items():
        figure, (axes,) = style.panels(1, 1, width=4.2, height=2.5)
        if _draw_epochs(axes, runs, key):
            if key == LOSS:
                axes.set_yscale("log")
                style.log_ticks(axes.yaxis, *axes.get_ylim())
            style.label(axes, "epoch", "")
            charts[title] = figure
    return charts


def dots(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """For the page: the accuracy of each arm of an experiment, a chart for each set of images."""
    charts = {}
    for images in images_of(rows):
        measured = by_arm(row for row in rows if row.accuracy(images))
        if not measured:
            continue
        figure, (axes,) = style.panels(1, 1, width=4.2, height=0.8 + 0.28 * len(measured))
        for y, (name, trained) in enumerate(measured.items()):
            color, marker = style.look(name)
            accuracies = [accuracy for row in trained if (accuracy := row.accuracy(images))]
            shares = [100 * accuracy.value for accuracy in accuracies]
            one = accuracies[0].interval
            low, high = (100 * one[0], 100 * one[1]) if len(shares) == 1 else (min(shares), max(shares))
            value = math.fsum(shares) / len(shares)
            axes.plot([low, high], [y, y], color=color, linewidth=2)
            axes.plot([value], [y], marker, color=color, markersize=6)
            side, place = ("left", high + 2) if high < 80 else ("right", low - 2)
            axes.text(place, y, f"{value:.1f}", ha=side, va="center", fontsize=8)
        axes.set_yticks(range(len(measured)), [trained[0].arm.short_title for trained in measured.values()])
        axes.set_ylim(len(measured) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        style.label(axes, "accuracy (%)", "")
        axes.grid(visible=False, axis="y")
        charts["clean test images" if images == CLEAN else images] = figure
    return charts


def radii(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """For the page: accuracy against the radius ε, for each attack that ran at several; ε = 0 is no attack."""
    charts = {}
    for images in dict.fromkeys(images for row in rows for images in row.curves):
        figure, (axes,) = style.panels(1, 1, width=4.2, height=2.5)
        places: set[float] = set()
        for name, trained in by_arm(row for row in rows if images in row.curves).items():
            points: style.Points = {}
            for row in trained:
                curve, clean = row.curves[images], row.accuracy(CLEAN)
                for eps, accuracy in zip((0.0, *curve.eps), (clean, *curve.accuracies), strict=True):
                    points.setdefault(eps, []).append(100 * accuracy.value if accuracy else math.nan)
            style.mean_and_range(axes, points, style.look(name), arm_title([row.arm for row in trained]))
            places |= points.keys()
        axes.set_xticks(sorted(places), [pixels(eps) for eps in sorted(places)])
        style.label(axes, "ε (no unit)", "")
        charts[f"{images} (%)"] = figure
    return charts


def gains(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per experiment with a block of rows for every set of test images and weights, and a row per arm."""
    experiments = [
        rows for rows in by_experiment(tidy(runs)) if any(arm.difference for arm in compare_arms(rows, CLEAN))
    ]
    if not experiments:
        raise InputError(NOTHING.format("gains"))
    panels = [_by_images(rows) for rows in experiments]
    figure, all_axes = style.panels(1, len(panels), width=5.2, height=1.1 + ROW * max(map(_height, panels)))
    titles_of = titles([rows[0].runs for rows in experiments])
    for blocks, axes, title in zip(panels, all_axes, titles_of, strict=True):
        style.label(axes, GAINED, "arm (its rate η)", title)
        _draw_blocks(axes, blocks)
    _explain_hollow(figure, itertools.chain(*panels))
    return figure


def _by_images(rows: Sequence[Row]) -> Blocks:
    """Every arm against the baseline, on clean images and under each attack."""
    title = rows[0].experiment.attack_title
    return [
        ("on clean images" if images == CLEAN else f"under {title(images)}", compare_arms(rows, images))
        for images in images_of(rows)
    ]


def summary(runs: Sequence[RunFolder]) -> "Figure":
    """A block of rows per experiment and a row per arm: under the attack that decides, and on clean images."""
    from matplotlib.ticker import FixedLocator

    experiments = [rows for rows in by_experiment(tidy(runs)) if compare_arms(rows)]
    robust = [(_heading(rows), compare_arms(rows)) for rows in experiments]
    clean = [(_heading(rows), compare_arms(rows, CLEAN)) for rows in experiments]
    if not any(arm.difference for _, arms in robust for arm in arms):
        raise InputError(NOTHING.format("summary"))
    figure, (left, right) = style.panels(1, 2, width=4.8, height=1.1 + ROW * _height(robust))
    style.label(left, GAINED, "arm (its rate η)", "under the attack that decides")
    style.label(right, GAINED, "", "on clean images")
    for axes, blocks in ((left, robust), (right, clean)):
        _draw_blocks(axes, blocks)
        axes.set_xscale("symlog", linthresh=REACH)
        axes.xaxis.set_major_locator(FixedLocator([-80, -40, -20, -10, 0, 10, 20, 40, 80]))
        axes.xaxis.set_major_formatter("{x:g}")
    right.set_yticklabels([])
    _explain_hollow(figure, robust)
    return figure


def _explain_hollow(figure: "Figure", blocks: Iterable[tuple[str, list[Result]]]) -> None:
    if any(arm.difference and arm.difference.seeds == 1 for _, arms in blocks for arm in arms):
        figure.supxlabel(HOLLOW, fontsize=8)


def _heading(rows: Sequence[Row]) -> str:
    """Network, data, batch size, objective, seeds and attack."""
    experiment, n_seeds = rows[0].experiment, len(rows[0].runs)
    words = [experiment.network, experiment.data_set, f"batches of {experiment.training.batch_size:,}"]
    words += [] if experiment.trains_plainly else [experiment.objective]
    words += [f"{n_seeds} seed{'s' * (n_seeds > 1)}", experiment.attack_title(experiment.deciding)]
    return ", ".join(words)


def _height(blocks: Blocks) -> int:
    """The number of rows that blocks take, with their headings."""
    return sum(len(style.wrapped(heading, HEADING).splitlines()) + len(arms) for heading, arms in blocks)


def _draw_blocks(axes: "Axes", blocks: Blocks) -> None:
    """Draw headings and arms from top to bottom."""
    names: list[str] = []
    for heading, arms in blocks:
        for line in style.wrapped(heading, HEADING).splitlines():
            _write(axes, len(names), line, weight="bold", size=8)
            names.append("")
        for arm in arms:
            _draw_gain(axes, len(names), arm)
            names.append(f"{arm.arm.short_title} ({_rate_range(arm.rows)})")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def _draw_gain(axes: "Axes", row: int, result: Result) -> None:
    """A mark with its interval, and a small dot for each of several seeds; or the reason why there is no gain."""
    difference = result.difference
    if difference is None or result.effect is Effect.BASELINE_FAILED:
        _write(axes, row, result.effect)
        return
    gain, low, high = (100 * share for share in (difference.difference, *difference.interval))
    color, marker = style.look(result.name)
    axes.vlines(0, row - 0.5, row + 0.5, color=style.INK, linewidth=1)
    axes.plot([low, high], [row, row], color=color, linewidth=1.2)
    if difference.seeds > 1:
        each = [100 * paired_difference([pair], result.images).difference for pair in result.pairs.values()]
        axes.plot(each, [row] * len(each), ".", color=color, markersize=3, alpha=0.6)
    axes.plot([gain], [row], marker, color=color, markerfacecolor=color if difference.seeds > 1 else "none")


def _write(axes: "Axes", row: int, text: str, *, weight: str = "normal", size: int = 7) -> None:
    """Write at the left border of a row."""
    where = axes.get_yaxis_transform()
    axes.text(0.01, row, text, transform=where, ha="left", va="center", fontsize=size, fontweight=weight)


def _rate_range(rows: Sequence[Row]) -> str:
    """The rate of all seeds, or their range."""
    low, high = (bound(row.arm.rate for row in rows) for bound in (min, max))
    return f"{low:.3g}" if high - low <= 1e-9 * high else f"{low:.3g}–{high:.3g}"
