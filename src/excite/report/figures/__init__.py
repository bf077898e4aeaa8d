"""Every figure, drawn from run folders: `draw(name, runs, folder)` writes it as SVG, PNG and PDF.

To add one: a function from runs to a matplotlib figure, and a line in `FIGURES`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from excite.registry import lookup
from excite.report.figures import accuracy, style, theory
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Kind", "draw", "plot"]


class Kind(NamedTuple):
    """A figure: what it shows, and the function that draws it from runs."""

    title: str
    plot: Callable[[Sequence[RunFolder]], "Figure"]


FIGURES: dict[str, Kind] = {
    "figure-1": Kind("Learning rates per epoch: baseline, 1/L and 2/L", theory.figure_1),
    "figure-2": Kind("Clean and robust accuracy against a constant learning rate", accuracy.figure_2),
    "figure-3": Kind("Clean and robust accuracy per epoch", accuracy.figure_3),
    "figure-4": Kind("Epochs where Assumption 2 holds, against batch size", theory.figure_4),
    "figure-5": Kind("L and p-values over M and N", theory.figure_5),
    "figure-6": Kind("L and p-values over (M, N) and initial shapes", theory.figure_6),
    "gains": Kind("What each arm gains on the baseline, with its interval", accuracy.gains),
    "summary": Kind("What each arm gains in every experiment, under the attack that decides", accuracy.summary),
    "theorem-1": Kind("Steps of gradient descent that are certified, from 0.5/L to 2/L", theory.theorem_1),
}


def plot(name: str, runs: Sequence[RunFolder]) -> "Figure":
    """The matplotlib figure, to change or to show."""
    with style.settings():
        return lookup("figure", FIGURES, name).plot(runs)


def draw(name: str, runs: Sequence[RunFolder], folder: Path) -> list[Path]:
    """Write `name`.svg, .png and .pdf into `folder`; InputError if the runs lack what the figure shows."""
    return style.save(plot(name, runs), name, FIGURES[name].title, folder)
