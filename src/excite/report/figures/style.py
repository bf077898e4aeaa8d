"""How every figure looks, on paper and on the page: colors, markers, legends, and reproducible files.

An SVG has a transparent background and draws text and axes in `currentColor`: dark by default, light if the reader
prefers dark, and on the page whatever its style sheet says for `.excite-figure`. A PNG is dark on white.
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
# The first four are from Okabe and Ito's color-blind palette. All have a contrast of at least 3 on white and on a dark
# page. Markers distinguish the arms in black and white.
BLUE, VERMILION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
COLORS = (BLUE, VERMILION, GREEN, PINK, "#8A63D2", "#85851A", "#D03A55", "#808488", "#9C6B30", "#1D91A8", "#B04CC0")
MARKERS = "os^Dv<>pPX*"
GLYPHS = "●■▲◆▼◀▶⬟✚✖★"  # the same markers, for the legend of the page
LOOKS = tuple((INK, marker) for marker in MARKERS)  # of test images, because colors stand for arms
DASHES = ("-", "--", ":", "-.", (0, (6, 1.5)))  # of their lines
GRID = "grid"  # a grid search over any number of rates
FIRST = ("baseline", "poe", "largest", GRID)  # the arms whose looks differ most
LETTERS_PER_INCH = 14  # of a title or a legend
Points = dict[float, list[float]]  # by place on the x axis: one value per seed
HEAT = "cividis"  # a color map with even lightness, readable for color-blind people

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "excite",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.6,
    "lines.markersize": 4,
    "lines.linewidth": 1.4,
    **dict.fromkeys(["axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "text.color", "grid.color"], INK),
    **dict.fromkeys(["xtick.color", "ytick.color"], INK),
}
DARK = f"<style>@media (prefers-color-scheme: dark) {{ .excite-figure {{ color: {LIGHT_INK} }} }}</style>"


def settings() -> AbstractContextManager[None]:
    """A context in which matplotlib draws in this style."""
    from matplotlib import rc_context

    return rc_context(SETTINGS)


def look(arm: str) -> tuple[str, str]:
    """The color and the marker of an arm in every figure. `poe@stated` has the color of `poe` and another marker."""
    base, preset, _ = arm.partition("@")
    order = list(dict.fromkeys((*FIRST, *ARMS)))
    family = GRID if arm_named(base).rates else base
    spare = max(1, len(COLORS) - len(order))
    number = order.index(family) if family in order else len(order) + crc32(base.encode()) % spare  # e.g. 1.9-over-L
    return COLORS[number % len(COLORS)], MARKERS[(number + bool(preset) * 5) % len(MARKERS)]


def panels(rows: int, columns: int, *, width: float = 4.2, height: float = 3.1) -> tuple["Figure", list["Axes"]]:
    """A figure and its panels, row by row; the size of each panel is in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def label(axes: "Axes", x: str, y: str, title: str = "") -> None:
    """Name both axes and, wrapped to the width of the panel, its content."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    place, figure = axes.get_subplotspec(), axes.get_figure(root=True)
    assert place is not None and figure is not None  # noqa: PT018, S101
    axes.set_title(wrapped(title, figure.get_figwidth() / place.get_gridspec().ncols - 0.8))
    axes.grid(visible=True)


def wrapped(text: str, inches: float) -> str:
    """Break lines so that text of the usual size fits into this width."""
    return "\n".join(textwrap.fill(line, max(8, int(inches * LETTERS_PER_INCH))) for line in text.splitlines())


def log_ticks(axis: "Axis", low: float, high: float) -> None:
    """Plain numbers on a log axis, as many as fit between `low` and `high`."""
    from matplotlib.ticker import LogLocator, NullFormatter

    decades = np.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1, 3) if decades < 3.5 else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def legend_below(figure: "Figure", axes: Sequence["Axes"], *, columns: int = 4) -> None:
    """One legend for all panels, each name once, in as many columns as fit."""
    named = {name: handle for panel in axes for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    words = [wrapped(name, figure.get_figwidth() - 0.6) for name in named]
    for tried in range(columns, 0, -1):
        legend = figure.legend(list(named.values()), words, loc="outside lower center", ncols=tried)
        if tried == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def mean_and_range(axes: "Axes", points: Points, look: tuple[str, str], name: str, dashes: Any = "-") -> None:
    """A line through the means, and a band from the smallest to the largest value if there are several."""
    places, (color, marker) = sorted(points), look
    means = [float(np.mean(points[x])) for x in places]
    axes.plot(places, means, color=color, marker=marker, linestyle=dashes, label=name)
    if any(len(points[x]) > 1 for x in places):
        low, high = [min(points[x]) for x in places], [max(points[x]) for x in places]
        name = "smallest to largest over seeds"
        axes.fill_between(places, low, high, color=color, alpha=0.2, linewidth=0, label=name)


def save(figure: "Figure", name: str, title: str, folder: Path) -> list[Path]:
    """Write `name`.svg, .png and .pdf; drawn again, they are the same byte for byte."""
    vector, pixels, print_ready = (folder / f"{name}.{kind}" for kind in ("svg", "png", "pdf"))
    write_text(vector, svg(figure, name, title))
    with settings(), atomic(pixels) as temporary:
        figure.savefig(temporary, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    with settings(), atomic(print_ready) as temporary:
        no_dates = {"CreationDate": None, "Producer": None, "Creator": None}
        figure.savefig(temporary, format="pdf", metadata=no_dates)
    return [vector, pixels, print_ready]


def svg(figure: "Figure", name: str, title: str, *, embedded: bool = False) -> str:
    """The figure as SVG; its ids start with `name`, so that a page can hold several.

    A file by itself follows the reader's preference for dark; one that is `embedded` follows the page.
    """
    text, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with settings():
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :].replace(INK, "currentColor")
    drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", drawing)
    opening, rest = drawing.split(">", 1)
    dark = "" if embedded else DARK
    return f'{opening} class="excite-figure" color="{INK}" role="img" aria-label={quoteattr(title)}>{dark}{rest}'
