"""Figures of accuracy: against the rate, the epoch and the radius of an attack, and what each arm gains."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from excite.errors import InputError
from excite.evaluation.comparison import paired_difference
from excite.quantities import pixels
from excite.report.figures import style
from excite.report.formats import points as signed_points
from excite.report.rows import BASELINE, CLEAN, Row, arm_names, by_experiment, pairs, select, tidy
from excite.report.verdict import Effect, Finding, compare_arms
from excite.runs.collection import same_but, titles, without_rate
from excite.runs.folder import RunFolder, Weights, arm_title, arm_titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import FillStyleType

RATES = {1: "1/L", 2: "edge, 2/L"}
CLEAN_EPOCHS, ATTACKED_CLEAN = "test_accuracy", "attacked_clean_accuracy"  # the latter on the images that are attacked
ROBUST, HELD_OUT = "robust_accuracy", "held_out_accuracy"  # the latter chose the best weights
LOSS = "loss"
MARKED_EPOCHS = 8
FILLINGS: "dict[Weights, FillStyleType]" = {"last": "full", "best": "none", "averaged": "left"}  # of the markers
ROOM = 0.7  # share of the height of an arm that its intervals take
REACH = 20  # points to either side of zero; larger differences are written at the border
NOTHING = "{} needs runs in which the baseline and another arm were evaluated. Try `excite run mnist-sample`."
Points = dict[float, list[float]]  # by place on the x axis: one value per seed


def figure_2(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per network; each arm of a run is a training at one constant rate. Mean and range over seeds."""
    constant = [run for run in runs if run.experiment.training.schedule["kind"] == "constant"]
    groups = same_but(without_rate, constant)
    groups = [group for group in groups if len(_by_rate(_without_controls(group), CLEAN)) > 1]
    if not groups:
        raise InputError(
            "figure-2 needs evaluated runs of one network at two or more constant rates. Try `excite sweep "
            'figure-2-relu-small`, or set training.schedule to { kind = "constant", rate = … } and run at several '
            "rates."
        )
    return against_rate(groups)


def against_rate(groups: Sequence[Sequence[RunFolder]]) -> "Figure":
    """Accuracy against the first rate, with 1/L and 2/L; a panel for each group of runs that differ in their rate."""
    figure, all_axes = style.panels(1, len(groups), width=4.8, height=3.6)
    for group, axes, title in zip(groups, all_axes, titles(groups), strict=True):
        _draw_rates(axes, group)
        style.label(axes, "first learning rate η¹ (no unit, log scale)", "accuracy on test images (%)", title)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _draw_rates(axes: "Axes", group: Sequence[RunFolder]) -> None:
    rows = _without_controls(group)
    for images, look in zip(dict.fromkeys(row.images for row in rows), cycle(style.LOOKS), strict=False):
        style.mean_and_range(axes, _by_rate(rows, images), look, images)
    rates, diverged = [row.arm.rate for row in rows], [row.arm.rate for row in select(rows) if row.arm.problem]
    if diverged:
        axes.plot(diverged, [0.0] * len(diverged), "x", color=style.INK, markersize=6, label="diverged", clip_on=False)
    for multiple, name in RATES.items():
        for line, rate in enumerate(sorted({run.estimate.learning_rate(multiple) for run in group if run.estimate})):
            dashes = (0, (1, 1.5)) if multiple == 1 else (0, (5, 2))
            axes.axvline(rate, color=style.INK, linewidth=1, linestyle=dashes, label=None if line else name)
    axes.set_xscale("log")
    style.log_ticks(axes.xaxis, min(rates), max(rates))
    axes.set_ylim(-2, 102)


def _without_controls(group: Sequence[RunFolder]) -> list[Row]:
    """Controls may have another batch size."""
    return [row for run in group for row in tidy([run]) if not row.arm.arm.control]


def _by_rate(rows: Iterable[Row], images: str) -> Points:
    points: Points = {}
    for row in select(rows, images=images):
        if accuracy := row.accuracy():
            points.setdefault(float(f"{row.arm.rate:.6g}"), []).append(100 * accuracy.value)
    return points


def figure_3(runs: Sequence[RunFolder]) -> "Figure":
    """Two panels per experiment: clean and robust accuracy after every epoch. Mean and range over seeds.

    If no epoch was attacked on test images, the robust accuracy is the one on held-out training images.
    """
    groups = same_but(lambda experiment: experiment, (run for run in runs if _has(run, ROBUST) or _has(run, HELD_OUT)))
    if not groups:
        raise InputError(
            "figure-3 needs runs that were attacked during training. Train in a new folder with --set "
            "record.attacked_examples=100 or record.best_every, or try `excite run figure-3-small`."
        )
    figure, all_axes = style.panels(len(groups), 2, width=4.6, height=3.2)
    for group, title, left, right in zip(groups, titles(groups), all_axes[::2], all_axes[1::2], strict=True):
        same_images = all(ATTACKED_CLEAN in epoch.extra for run in group for arm in run.arms for epoch in arm.epochs)
        attack = next(iter(group[0].experiment.attacks), "attack")
        robust = ROBUST if any(_has(run, ROBUST) for run in group) else HELD_OUT
        clean = ATTACKED_CLEAN if same_images else CLEAN_EPOCHS
        for axes, key, name, words in ((left, clean, "clean", title), (right, robust, "robust", f"{title}; {attack}")):
            _draw_epochs(axes, group, key)
            style.label(axes, "epoch", f"{name} accuracy (%, {_images(group[0], key)})", words)
    style.legend_below(figure, all_axes)
    return figure


def _draw_epochs(axes: "Axes", runs: Sequence[RunFolder], key: str) -> bool:
    """A line per arm of a quantity after each epoch; False if no epoch recorded it."""
    from matplotlib.ticker import MaxNLocator

    for name, title in arm_titles(runs).items():
        points: Points = {}
        for epoch in (epoch for run in runs for arm in run.arms if arm.name == name for epoch in arm.epochs):
            value = epoch.loss if key == LOSS else 100 * epoch.extra.get(key, math.nan)
            if math.isfinite(value) and (key != LOSS or value > 0):  # which has a log scale
                points.setdefault(epoch.epoch, []).append(value)
        if points:
            style.mean_and_range(axes, points, style.look(name), title)
            axes.lines[-1].set_markevery(max(1, len(points) // MARKED_EPOCHS))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return bool(axes.lines)


def _images(run: RunFolder, key: str) -> str:
    """On which images the accuracy of an epoch was measured."""
    record = run.experiment.record
    if key == HELD_OUT:
        return f"{record.held_out_examples:,} held-out images"
    first = record.test_examples if key == CLEAN_EPOCHS else record.attacked_examples
    available = run.experiment.data.test_examples or math.inf
    return f"first {first:,} test images" if 0 < first < available else "all test images"


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
    for images in dict.fromkeys(row.images for row in rows):
        arms = {name: [row for row in select(rows, name, images) if row.accuracy()] for name in arm_names(rows)}
        measured = {name: trained for name, trained in arms.items() if trained}
        if not measured:
            continue
        figure, (axes,) = style.panels(1, 1, width=4.2, height=0.8 + 0.28 * len(measured))
        for y, (name, trained) in enumerate(measured.items()):
            color, marker = style.look(name)
            shares = [100 * accuracy.value for row in trained if (accuracy := row.accuracy())]
            value, low, high = math.fsum(shares) / len(shares), min(shares), max(shares)
            if len(trained) == 1 and (accuracy := trained[0].accuracy()):
                low, high = (100 * bound for bound in accuracy.interval)
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
    for images in dict.fromkeys(row.images for row in rows if row.curve):
        figure, (axes,) = style.panels(1, 1, width=4.2, height=2.5)
        places: set[float] = set()
        for name in arm_names(rows):
            points: Points = {}
            arms = [row.arm for row in select(rows, name, images) if row.curve]
            for evaluation in (arm.evaluation for arm in arms if arm.evaluation):
                curve = evaluation.curves[images]
                for eps, accuracy in zip((0.0, *curve.eps), (evaluation.clean, *curve.accuracies), strict=True):
                    points.setdefault(eps, []).append(100 * accuracy.value)
            if points:
                style.mean_and_range(axes, points, style.look(name), arm_title(arms))
                places |= points.keys()
        axes.set_xticks(sorted(places), [pixels(eps) for eps in sorted(places)])
        style.label(axes, "ε (no unit)", "")
        charts[f"{images} (%)"] = figure
    return charts


def gains(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per experiment, a row per arm: a small dot for each seed, a large one for their mean and 95% interval."""
    experiments = [rows for rows in by_experiment(tidy(runs)) if len(_evaluated(rows)) > 1]
    if not experiments:
        raise InputError(NOTHING.format("gains"))
    height = 1.6 + 0.75 * max(len(arm_names(rows)) for rows in experiments)
    figure, all_axes = style.panels(1, len(experiments), width=5.2, height=height)
    names = titles([rows[0].group.runs for rows in experiments])
    for rows, axes, title in zip(experiments, all_axes, names, strict=True):
        _draw_gains(axes, rows)
        style.label(axes, "points gained (95% interval)", "arm (its rate η)", title)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _evaluated(rows: Sequence[Row]) -> list[str]:
    """The evaluated arms; none without an evaluated baseline."""
    names = [name for name in arm_names(rows) if any(row.evaluation() for row in select(rows, name))]
    return names if BASELINE in names else []


def _draw_gains(axes: "Axes", rows: Sequence[Row]) -> None:
    arms = [name for name in _evaluated(rows) if name != BASELINE]
    kept = [weights for weights in FILLINGS if any(row.evaluation(weights) for row in select(rows, BASELINE))]
    attacks = dict.fromkeys(row.images for row in rows if row.name == BASELINE and row.accuracy())
    looks = dict(zip(attacks, cycle(style.LOOKS), strict=False))
    lines = [(images, weights) for images in attacks for weights in kept]
    for number, (images, weights) in enumerate(lines):
        color, marker = looks[images]
        offset = ROOM * ((number + 0.5) / len(lines) - 0.5)
        for y, arm in enumerate(arms):
            paired = list(pairs(select(rows, BASELINE, images), select(rows, arm, images), weights).values())
            if not paired:
                continue
            mean = paired_difference(paired, images)
            gain, low, high = (100 * share for share in (mean.difference, *mean.interval))
            axes.plot([low, high], [y + offset] * 2, color=color, linewidth=1.2)
            name = images if weights == "last" else f"{images}, {weights} weights"
            axes.plot([gain], [y + offset], marker, color=color, fillstyle=FILLINGS[weights], label=name)
            each = [100 * paired_difference([pair], images).difference for pair in paired]
            axes.plot(each, [y + offset] * len(each), ".", color=color, markersize=3, alpha=0.6)
    axes.axvline(0, color=style.INK, linewidth=1)
    trained = [select(rows, arm) for arm in arms]
    names = [f"{arm_title([row.arm for row in seeds])}\n(η = {_rate_range(seeds)})" for seeds in trained]
    axes.set_yticks(range(len(arms)), names)
    axes.set_ylim(len(arms) - 0.5, -0.5)


def _rate_range(rows: Sequence[Row]) -> str:
    """The rate of all seeds, or their range."""
    low, high = (bound(row.arm.rate for row in rows) for bound in (min, max))
    return f"{low:.3g}" if high - low <= 1e-9 * high else f"{low:.3g}–{high:.3g}"


def summary(runs: Sequence[RunFolder]) -> "Figure":
    """A block of rows per experiment, a row per arm; hollow marks stand for one training."""
    experiments = [rows for rows in by_experiment(tidy(runs)) if compare_arms(rows)]
    robust = [compare_arms(rows) for rows in experiments]
    if not any(finding.compared for findings in robust for finding in findings):
        raise InputError(NOTHING.format("summary"))
    clean = [compare_arms(rows, CLEAN) for rows in experiments]
    names: list[str] = []
    headings: dict[int, str] = {}
    for rows, findings, title in zip(experiments, robust, _titles(experiments), strict=True):
        lines = style.wrapped(title, 2.9).splitlines()
        headings |= {len(names) + n: line for n, line in enumerate(lines)}
        names += [""] * len(lines)
        names += [f"{finding.arm} ({_rate_range(select(rows, finding.name))})" for finding in findings]
    figure, (left, right) = style.panels(1, 2, width=4.6, height=1.1 + 0.23 * len(names))
    for axes, blocks, measure in ((left, robust, "under the attack that decides"), (right, clean, "on clean images")):
        style.label(axes, "points gained (95% interval)", "arm (its rate η)" if axes is left else "", measure)
        axes.axvline(0, color=style.INK, linewidth=1)
        axes.set_xlim(-REACH, REACH)
        axes.set_ylim(len(names) - 0.5, -0.5)
        arm_rows = (row for row in range(len(names)) if row not in headings)
        for row, finding in zip(arm_rows, (finding for findings in blocks for finding in findings), strict=True):
            _draw_finding(axes, row, finding)
        axes.set_yticks(range(len(names)), names if axes is left else [""] * len(names))
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
    for row, line in headings.items():
        left.text(-REACH, row, f" {line}", va="center", fontsize=8, fontweight="bold")
    figure.supxlabel("Hollow: one training per arm; its interval covers the choice of test images only.", fontsize=8)
    return figure


def _draw_finding(axes: "Axes", row: int, finding: Finding) -> None:
    gain, low, high = (100 * share for share in (finding.difference, *finding.interval))
    if not finding.compared or finding.effect is Effect.BASELINE_LEARNED_NOTHING:
        axes.text(-REACH, row, f" {finding.effect}", va="center", fontsize=7)
    elif abs(gain) > REACH:
        text = "{} ({} to {})".format(*map(signed_points, (finding.difference, *finding.interval)))
        text, side = (f" ← {text}", "left") if gain < 0 else (f"{text} → ", "right")
        axes.text(math.copysign(REACH, gain), row, text, va="center", ha=side, fontsize=7)
    else:
        color, marker = style.look(finding.name)
        axes.plot([low, high], [row, row], color=color, linewidth=1.2)
        axes.plot([gain], [row], marker, color=color, markerfacecolor=color if len(finding.seeds) > 1 else "none")


def _titles(experiments: Sequence[Sequence[Row]]) -> list[str]:
    """Network, data, batch size, objective and seeds; and the experiment's name if two are otherwise equal."""
    described = []
    for group in (rows[0].group for rows in experiments):
        experiment, n_seeds = group.experiment, len(group.seeds)
        words = [experiment.network, experiment.data_set, f"batches of {experiment.training.batch_size:,}"]
        words += [] if experiment.trains_plainly else [experiment.objective]
        described.append((", ".join([*words, f"{n_seeds} seed{'s' * (n_seeds > 1)}"]), experiment.name))
    repeated = Counter(title for title, _ in described)
    return [f"{title} ({name})" if repeated[title] > 1 else title for title, name in described]
