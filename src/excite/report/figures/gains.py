"""Figures of what each arm gains on the baseline: in one experiment under every attack, and in many under one."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from excite.errors import InputError
from excite.evaluation.comparison import paired_difference
from excite.report.comparison import Effect, Finding, compare_arms, points
from excite.report.figures import style
from excite.report.rows import BASELINE, CLEAN, Row, arm_names, by_experiment, pairs, select, tidy
from excite.runs.collection import titles
from excite.runs.folder import RunFolder, arm_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOM = 0.7  # share of the height of an arm that its intervals take
REACH = 20  # points to either side of zero; larger differences are written at the border
NOTHING = "{} needs runs in which the baseline and another arm were evaluated. Try `excite run mnist-sample`."


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
    has_best = any(row.evaluation(best=True) for row in select(rows, BASELINE))
    attacks = dict.fromkeys(row.images for row in rows if row.name == BASELINE and row.accuracy())
    looks = dict(zip(attacks, cycle(style.LOOKS), strict=False))
    lines = [(images, best) for images in attacks for best in ((False, True) if has_best else (False,))]
    for number, (images, best) in enumerate(lines):
        color, marker = looks[images]
        offset = ROOM * ((number + 0.5) / len(lines) - 0.5)
        for y, arm in enumerate(arms):
            paired = list(pairs(select(rows, BASELINE, images), select(rows, arm, images), best=best).values())
            if not paired:
                continue
            found = paired_difference(paired, images)
            gain, low, high = (100 * share for share in (found.difference, *found.interval))
            axes.plot([low, high], [y + offset] * 2, color=color, linewidth=1.2)
            name, filling = (f"{images}, best weights", "none") if best else (images, color)
            axes.plot([gain], [y + offset], marker, color=color, markerfacecolor=filling, label=name)
            each = [100 * paired_difference([pair], images).difference for pair in paired]
            axes.plot(each, [y + offset] * len(each), ".", color=color, markersize=3, alpha=0.6)
    axes.axvline(0, color=style.INK, linewidth=1)
    trained = [select(rows, arm) for arm in arms]
    names = [f"{arm_title([row.arm for row in found])}\n(η = {_rates(found)})" for found in trained]
    axes.set_yticks(range(len(arms)), names)
    axes.set_ylim(len(arms) - 0.5, -0.5)


def _rates(rows: Sequence[Row]) -> str:
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
        names += [f"{finding.arm} ({_rates(select(rows, finding.name))})" for finding in findings]
    figure, (left, right) = style.panels(1, 2, width=4.6, height=1.1 + 0.23 * len(names))
    for axes, blocks, measure in (
        (left, robust, "under the attack that decides"),
        (right, clean, "on clean images"),
    ):
        style.label(axes, "points gained (95% interval)", "arm (its rate η)" if axes is left else "", measure)
        axes.axvline(0, color=style.INK, linewidth=1)
        axes.set_xlim(-REACH, REACH)
        axes.set_ylim(len(names) - 0.5, -0.5)
        arm_rows = (row for row in range(len(names)) if row not in headings)
        for row, finding in zip(arm_rows, (one for findings in blocks for one in findings), strict=True):
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
        text = "{} ({} to {})".format(*map(points, (finding.difference, *finding.interval)))
        text, side = (f" ← {text}", "left") if gain < 0 else (f"{text} → ", "right")
        axes.text(math.copysign(REACH, gain), row, text, va="center", ha=side, fontsize=7)
    else:
        color, marker = style.look(finding.name)
        axes.plot([low, high], [row, row], color=color, linewidth=1.2)
        axes.plot([gain], [row], marker, color=color, markerfacecolor=color if len(finding.seeds) > 1 else "none")


def _titles(experiments: Sequence[Sequence[Row]]) -> list[str]:
    """Network, data, batch size, objective and seeds; and the experiment's name if two are otherwise equal."""
    found = []
    for rows in experiments:
        experiment, n_seeds = rows[0].group.experiment, len(rows[0].group.seeds)
        objective = [] if experiment.trains_plainly else [experiment.objective]
        batch = f"batches of {experiment.training.batch_size:,}"
        seeds = f"{n_seeds} seed{'s' * (n_seeds > 1)}"
        found.append(", ".join([experiment.network, experiment.data_set, batch, *objective, seeds]))
    repeated = Counter(found)
    names = [rows[0].group.experiment.name for rows in experiments]
    return [f"{title} ({name})" if repeated[title] > 1 else title for title, name in zip(found, names, strict=True)]
