"""Every figure, drawn from run folders: `draw(name, runs, folder)` writes it as SVG, PNG and PDF.

To add one: a file with a function from runs to a matplotlib figure, and a line in `FIGURES`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from excite.registry import lookup, named_options
from excite.report.figures import estimators, figure_1, figure_2, figure_3, figure_4, gains, style, summary, theorem_1
from excite.report.figures.heat_maps import figure_5, figure_6
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Kind", "draw", "plot"]


@dataclass(frozen=True)
class Kind:
    """A figure: what it shows, and what draws it from runs."""

    title: str
    plot: Callable[[Sequence[RunFolder]], "Figure"]


FIGURES: dict[str, Kind] = {
    "figure-1": Kind("Learning rates per epoch: baseline, 1/L and 2/L", figure_1.figure_1),
    "figure-2": Kind("Clean and robust accuracy against a constant learning rate", figure_2.figure_2),
    "figure-3": Kind("Clean and robust accuracy per epoch", figure_3.figure_3),
    "figure-4": Kind("Epochs where Assumption 2 holds, against batch size", figure_4.figure_4),
    "figure-5": Kind("L and p-values over M and N", figure_5),
    "figure-6": Kind("L and p-values over (M, N) and initial shapes", figure_6),
    "gains": Kind("What each arm gains on the baseline, with its interval", gains.gains),
    "summary": Kind("What each arm gains in every experiment, under the attack that decides", summary.summary),
    "theorem-1": Kind("Where gradient descent is certified, from 0.5/L to 2/L", theorem_1.theorem_1),
    "estimators": Kind("What each estimator says L is, beside the edge of stability", estimators.estimators),
}


@named_options
def plot(name: str, runs: Sequence[RunFolder]) -> "Figure":
    """The figure as matplotlib has it, to change or to show."""
    with style.settings():
        return lookup("figure", FIGURES, name).plot(runs)


@named_options
def draw(name: str, runs: Sequence[RunFolder], folder: Path) -> list[Path]:
    """Write `name`.svg, .png and .pdf into `folder`; runs that lack what the figure shows are an InputError."""
    title = lookup("figure", FIGURES, name).title
    return style.save(plot(name, runs), name, title, folder)
