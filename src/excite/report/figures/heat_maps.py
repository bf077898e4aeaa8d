"""Figures 5 and 6: what Algorithm 1 says L is, and how well its law fits, for every (M, N) and initial shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz import LipschitzEstimate
from excite.report.figures import style
from excite.report.tables.published import FIGURE_5_CONSTANTS, FIGURE_5_MAXIMA, FIGURE_5_POINTS, at_full_scale
from excite.runs.folder import RunFolder, stored_estimates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ESTIMATOR = "epochs"  # Algorithm 1 as the paper has it
REPEATS_THE_PAPER = "figures-5-6"
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Maps:
    """What Algorithm 1 said of one baseline; arrays are M × N × initial shapes."""

    title: str
    experiment: str
    estimate: LipschitzEstimate
    n_maxima: list[int]
    n_points: list[int]
    shapes: list[float]
    constants: Floats
    p_values: Floats
    identified: NDArray[np.bool_]

    @property
    def best(self) -> NDArray[np.int_]:
        """For each (M, N) the initial shape with the largest p-value."""
        best: NDArray[np.int_] = self.p_values.argmax(axis=2)
        return best

    def at_best(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.take_along_axis(values, self.best[:, :, None], axis=2)[:, :, 0]

    @property
    def chosen(self) -> tuple[int, int]:
        """Row and column of the pair that the paper's heuristic picks."""
        details = self.estimate.details
        return self.n_maxima.index(details["M"]), self.n_points.index(details["N"])

    @property
    def passing(self) -> list[tuple[int, int]]:
        details = self.estimate.details
        pairs = details["pairs"] if details["pairs_pass"] else []
        return [(self.n_maxima.index(pair["M"]), self.n_points.index(pair["N"])) for pair in pairs]


def maps(name: str, runs: Sequence[RunFolder]) -> Maps:
    """Of the first run that was asked for L by Algorithm 1."""
    answers = [(run, stored_estimates(run)[ESTIMATOR]) for run in runs]
    for run, answer in answers:
        if isinstance(answer, LipschitzEstimate):
            return _maps(run, answer)
    run, reason = answers[0]
    raise InputError(
        f"{name} needs L by {ESTIMATOR}, with its heat map. {run.path}: {reason}. `excite run figures-5-6-small` "
        "makes a run that has it."
    )


def _maps(run: RunFolder, estimate: LipschitzEstimate) -> Maps:
    cells: dict[str, Any] = estimate.details["heat_map"]
    return Maps(
        title=f"{run.experiment.network}, {run.experiment.data_set}, seed {run.experiment.seed}, "
        f"{run.experiment.training.epochs} epochs",
        experiment=run.experiment.name,
        estimate=estimate,
        n_maxima=cells["n_maxima"],
        n_points=cells["n_points"],
        shapes=cells["initial_shapes"],
        constants=np.array(cells["constants"]),
        p_values=np.array(cells["p_values"]),
        identified=np.array(cells["identified"]),
    )


def figure_5(runs: Sequence[RunFolder]) -> "Figure":
    """(a) p-values by initial shape for the M that is chosen; (b) L and (c) the largest p-value for each (M, N).

    Where the experiment repeats the paper's figure, its L stand beside ours.
    """
    found = maps("figure-5", runs)
    beside_paper = at_full_scale(found.experiment) == REPEATS_THE_PAPER
    figure, axes = style.panels(2 if beside_paper else 1, 2 if beside_paper else 3, width=4.4, height=3.5)
    row, column = found.chosen
    shapes = [f"{shape:g}" for shape in found.shapes]
    _heat(axes[0], found.p_values[row], shapes, found.n_points, name=f"(a) p-value for M = {found.n_maxima[row]}")
    _frame(axes[0], column, int(found.best[row, column]), width=3)
    axes[0].set_xlabel("initial shape (no unit)")
    axes[0].set_ylabel("N (points per block)")
    constants, p_values = found.at_best(found.constants), found.at_best(found.p_values)
    ticks = found.n_points, found.n_maxima
    unsure = ~found.at_best(found.identified)
    note = "; * not identified, a bound" if unsure.any() else ""
    _heat(axes[1], constants, *ticks, name=f"(b) L at the best initial shape{note}", logarithmic=True, unsure=unsure)
    _heat(axes[2], p_values, *ticks, name="(c) largest p-value (Kolmogorov–Smirnov)")
    for one in axes[1:3]:
        for pair in found.passing:
            _frame(one, *pair, width=1.2)
        _frame(one, row, column, width=3)
    if beside_paper:
        _heat(
            axes[3],
            np.array(FIGURE_5_CONSTANTS),
            list(FIGURE_5_POINTS),
            list(FIGURE_5_MAXIMA),
            name="L in the paper's Figure 5 (b)",
            logarithmic=True,
        )
    for one in axes[1:]:
        one.set_xlabel("N (points per block)")
        one.set_ylabel("M (block maxima)")
    alpha = found.estimate.details["alpha"]
    said = "L =" if found.estimate.identified else "L is NOT identified, bounded by"
    figure.suptitle(
        f"{found.title}: {said} {found.estimate.constant:.3g} (thick frame); thin frames pass α = {alpha:g}",
        fontsize=9,
    )
    return figure


def figure_6(runs: Sequence[RunFolder]) -> "Figure":
    """L and p-value for each (M, N) and initial shape."""
    found = maps("figure-6", runs)
    pairs = [f"{m}, {n}" for m in found.n_maxima for n in found.n_points]
    shapes = [f"{shape:g}" for shape in found.shapes]
    figure, axes = style.panels(1, 2, width=4.8, height=0.27 * len(pairs) + 1.2)
    size = (len(pairs), len(shapes))
    _heat(axes[0], found.constants.reshape(size), shapes, pairs, name="L (log scale)", logarithmic=True)
    _heat(axes[1], found.p_values.reshape(size), shapes, pairs, name="p-value (Kolmogorov–Smirnov)")
    for one in axes:
        one.set_xlabel("initial shape (no unit)")
        one.set_ylabel("M (block maxima), N (points per block)")
    figure.suptitle(found.title, fontsize=9)
    return figure


def _heat(
    axes: "Axes",
    values: Floats,
    columns: Sequence[Any],
    rows: Sequence[Any],
    *,
    name: str,
    logarithmic: bool = False,
    unsure: NDArray[np.bool_] | None = None,
) -> None:
    """Cells with their values written in them, in black or white, whichever is seen better; a star where `unsure`."""
    from matplotlib.colors import LogNorm, Normalize

    usable = values[np.isfinite(values) & (values > 0)]
    norm = LogNorm(usable.min() / 1.02, usable.max() * 1.02) if logarithmic else Normalize(0, 1)
    mesh = axes.pcolormesh(np.ma.masked_invalid(values), cmap=style.HEAT, norm=norm, edgecolors="none")
    axes.invert_yaxis()
    axes.set_xticks(np.arange(len(columns)) + 0.5, [str(column) for column in columns])
    axes.set_yticks(np.arange(len(rows)) + 0.5, [str(row) for row in rows])
    axes.tick_params(length=0)
    colours = mesh.cmap(norm(values))
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = colours[row, column]
        dark = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.18
        text = f"{value:.3g}" if logarithmic else f"{value:.2f}"
        text += "*" if unsure is not None and unsure[row, column] else ""
        axes.text(
            column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color="#ffffff" if dark else "#000000"
        )
    axes.set_title(name)


def _frame(axes: "Axes", row: int, column: int, *, width: float) -> None:
    from matplotlib.patches import Rectangle

    inset = 0.04
    axes.add_patch(
        Rectangle(
            (column + inset, row + inset),
            1 - 2 * inset,
            1 - 2 * inset,
            fill=False,
            edgecolor=style.VERMILION,
            linewidth=width,
        )
    )
