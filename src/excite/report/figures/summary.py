"""What every arm gains on the baseline in every experiment: under the attack that decides, and on clean images."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from excite.errors import InputError
from excite.report.figures import style
from excite.report.figures.gains import rates_of
from excite.report.findings import AGAINST_DEAD, Finding, compare_arms, signed
from excite.report.tables.study_columns import arms_of
from excite.runs.collection import Group, by_seed
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REACH = 20  # points to either side; what was lost or gained beyond is written at the edge


def summary(runs: Sequence[RunFolder]) -> "Figure":
    """A block of rows per experiment, its title first, a row per arm; hollow where one training stands for all."""
    groups = by_seed(runs)
    robust = [compare_arms(group) for group in groups]
    if not any(found.compared for arms in robust for found in arms):
        raise InputError(
            "summary needs runs whose baseline and another arm were both evaluated. Try `excite run mnist-sample`."
        )
    clean = [compare_arms(group, "clean") for group in groups]
    names = [name for group, arms in zip(groups, robust, strict=True) for name in ("", *_names(group, arms))]
    rows = len(names)
    figure, panels = style.panels(1, 2, width=4.6, height=1.1 + 0.23 * rows)
    for axes, blocks, measure in zip(
        panels, (robust, clean), ("under the attack that decides", "on clean images"), strict=True
    ):
        style.label(axes, "points gained (95% interval)", "arm (its rate η)", measure)
        axes.axvline(0, color=style.INK, linewidth=1)
        axes.set_xlim(-REACH, REACH)
        axes.set_ylim(rows - 0.5, -0.5)
        for row, found in enumerate(found for block in blocks for found in (None, *block)):
            if found:
                _draw(axes, row, found)
        axes.set_yticks(range(rows), names if axes is panels[0] else [""] * rows)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
    heads = [row for row, name in enumerate(names) if not name]
    for row, title in zip(heads, _titles(groups), strict=True):
        words = panels[0].text(-REACH, row, f" {title}", va="center", fontsize=8, fontweight="bold")
        words.set_in_layout(False)  # a long one reaches into the other panel
    panels[1].set_facecolor("none")
    figure.supxlabel("Hollow: one training per arm; its interval covers the choice of test images alone.", fontsize=8)
    return figure


def _names(group: Group, arms: Sequence[Finding]) -> list[str]:
    rates = {arm.name: rates_of(arm) for arm in arms_of(group, "")}
    return [f"{found.arm} ({rates[found.name]})" for found in arms]


def _draw(axes: "Axes", row: int, found: Finding) -> None:
    gain, low, high = (100 * share for share in (found.difference, *found.interval))
    if not found.compared or found.effect == AGAINST_DEAD:
        axes.text(-REACH, row, f" {found.effect}", va="center", fontsize=7)
    elif abs(gain) > REACH:
        least, most = map(signed, found.interval)
        words = f"{signed(found.difference)} ({least} to {most})"
        words, side = (f" ← {words}", "left") if gain < 0 else (f"{words} → ", "right")
        axes.text(math.copysign(REACH, gain), row, words, va="center", ha=side, fontsize=7)
    else:
        colour, marker = style.look(found.name)
        axes.plot([low, high], [row, row], color=colour, linewidth=1.2)
        axes.plot([gain], [row], marker, color=colour, markerfacecolor=colour if len(found.seeds) > 1 else "none")


def _titles(groups: Sequence[Group]) -> list[str]:
    """Of each experiment network, data, batch, objective and seeds; its own name, too, where two would be alike."""
    titles = []
    for group in groups:
        one, seeds = group.experiment, len(group.seeds)
        objective = [] if one.trains_plainly else [one.objective]
        batch = f"batches of {one.training.batch_size:,}"
        titles.append(", ".join([one.network, one.data_set, batch, *objective, f"{seeds} seed{'s' * (seeds > 1)}"]))
    alike = Counter(titles)
    return [
        f"{title} ({group.experiment.name})" if alike[title] > 1 else title
        for title, group in zip(titles, groups, strict=True)
    ]
