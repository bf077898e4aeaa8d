"""How every figure looks: colours that all can tell apart, in print and in the dark; the same bytes every time.

An SVG has no background, and its ink is `currentColor`: dark by itself, light where the reader prefers dark, and on a
page whatever the page says (`.excite-figure { color: … }`). Its letters stay letters. A PNG is dark on white.
"""

import io
import re
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr
from zlib import crc32

import numpy as np

from excite.files import atomic, write_text
from excite.runs.arms import ARMS, arm_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, LIGHT_INK = "#1a1a1a", "#ececec"
# From Okabe and Ito's palette, which colour-blind readers can tell apart: those with a contrast of 3 and more both on
# white and on a dark page. Markers say the same in black and white.
BLUE, VERMILION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
LOOKS = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (PINK, "D"), (INK, "v"))
COLOURS, MARKERS = tuple(colour for colour, _ in LOOKS), "os^Dv<>pPX*h8"
GRID = "a grid"  # of any number of rates
FIRST = ("baseline", "poe", "largest", GRID)  # of the arms: the looks that differ most
LONGEST_NAME = 60  # letters in a line of a legend or a panel's title
HEAT = "cividis"  # even in lightness, the same for nearly all eyes

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "excite",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "grid.color": INK,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.6,
    "lines.markersize": 4,
    "lines.linewidth": 1.4,
}
DARK = f"<style>@media (prefers-color-scheme: dark) {{ .excite-figure {{ color: {LIGHT_INK} }} }}</style>"


def settings() -> AbstractContextManager[None]:
    """The house's looks, for what is drawn inside."""
    from matplotlib import rc_context

    return rc_context(SETTINGS)


def look(arm: str) -> tuple[str, str]:
    """Colour and marker of an arm, the same in every figure; an arm with another's L has the colour of the arm."""
    base, at, _ = arm.partition("@")
    order = list(dict.fromkeys((*FIRST, *ARMS)))
    family = GRID if arm_named(base).rates else base
    number = order.index(family) if family in order else len(order) + crc32(base.encode())  # such as 1.9-over-L
    return COLOURS[number % len(COLOURS)], MARKERS[(number + bool(at) * len(order)) % len(MARKERS)]


def panels(rows: int, columns: int, *, width: float = 4.2, height: float = 3.1) -> tuple["Figure", list["Axes"]]:
    """A figure and its panels, row by row; sizes in inches per panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def label(axes: "Axes", x: str, y: str, title: str = "") -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title("\n".join(textwrap.fill(line, LONGEST_NAME) for line in title.splitlines()))
    axes.grid(visible=True)


def log_ticks(axis: "Axis", low: float, high: float) -> None:
    """For an axis on a log scale: plain numbers, as many as a span from `low` to `high` has room for."""
    from matplotlib.ticker import LogLocator, NullFormatter

    decades = np.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1, 3) if decades < 3.5 else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def whole_epochs(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def legend_below(figure: "Figure", axes: Sequence["Axes"], *, columns: int = 4) -> None:
    """One legend for all panels, each name once, in as many columns as the figure is wide enough for."""
    named = {name: handle for one in axes for handle, name in zip(*one.get_legend_handles_labels(), strict=True)}
    words = [textwrap.fill(name, LONGEST_NAME) for name in named]
    for tried in range(columns, 0, -1):
        legend = figure.legend(list(named.values()), words, loc="outside lower center", ncols=tried)
        if tried == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def mean_and_range(
    axes: "Axes", points: dict[float, list[float]], *, colour: str, marker: str, name: str, line: str = "-"
) -> None:
    """A line through the means, and a band from the smallest to the largest value where there are several."""
    at = sorted(points)
    axes.plot(at, [float(np.mean(points[x])) for x in at], color=colour, marker=marker, linestyle=line, label=name)
    if any(len(points[x]) > 1 for x in at):
        low, high = [min(points[x]) for x in at], [max(points[x]) for x in at]
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0, label="from least to most over seeds")


def save(figure: "Figure", name: str, title: str, folder: Path) -> list[Path]:
    """Write `name`.svg, .png and .pdf; drawn again they are the same, byte for byte."""
    vector, pixels, print_ready = (folder / f"{name}.{kind}" for kind in ("svg", "png", "pdf"))
    write_text(vector, svg(figure, name, title))
    with settings(), atomic(pixels) as temporary:
        figure.savefig(temporary, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    with settings(), atomic(print_ready) as temporary:
        dateless = {"CreationDate": None, "Producer": None, "Creator": None}
        figure.savefig(temporary, format="pdf", metadata=dateless)
    return [vector, pixels, print_ready]


def svg(figure: "Figure", name: str, title: str) -> str:
    """The figure as SVG text that can stand in a page beside others: its ids begin with `name`."""
    text = io.StringIO()
    with settings():
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :].replace(INK, "currentColor")
    drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", drawing)
    opening, rest = drawing.split(">", 1)
    return f'{opening} class="excite-figure" color="{INK}" role="img" aria-label={quoteattr(title)}>{DARK}{rest}'
