"""Figures of the theory: schedules from 1/L and 2/L, Algorithm 1 for every (M, N), Assumption 2 and Theorem 1."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz import LipschitzEstimate
from excite.registry import build, kind_and_options
from excite.report.figures import style
from excite.report.rows import FIGURE_5, arm_title, at_full_scale, by_arm, same_but, tidy, titles
from excite.runs.arms import arm_named
from excite.runs.experiment import Experiment, load
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from excite.schedules import Schedule

KINDS = ("step", "exponential", "cosine")
ALGORITHM_1 = "epochs"
REPEATS_THE_PAPER = "figures-5-6"
ROW_OF_FIGURE_1 = "table-1-cifar10-resnet20"
MULTIPLES = {0.5: "half", 1.0: "poe", 1.5: "beyond", 2.0: "largest"}  # of 1/L, and the arm that has the same color
QUADRATICS = {"a quadratic in one dimension": (1.0,), "a quadratic, λ = 1, 0.3, 0.1": (1.0, 0.3, 0.1)}
SHAPE, POINTS, MAXIMA = "initial shape (no unit)", "N (points per block)", "M (block maxima)"
STEPS = 40  # on the quadratics
Floats = NDArray[np.float64]


def figure_1(runs: Sequence[RunFolder]) -> "Figure":
    """The rates of baseline, 1/L and 2/L for each kind of schedule, from the first run with an estimate of L.

    Without runs, it shows the paper's row `ROW_OF_FIGURE_1` at the published L.
    """
    from excite.schedules import rescale

    run = next((run for run in runs if run.estimate), None)
    if run is not None and run.estimate is not None:
        experiment, estimate = run.experiment, run.estimate
    elif runs:
        raise InputError("figure-1 needs a run with an estimate of L. `excite estimate RUN --train` makes one.")
    else:
        experiment = load(ROW_OF_FIGURE_1)
        estimate = experiment.estimator_of()(None)
    epochs = experiment.training.epochs
    figure, all_axes = style.panels(1, len(KINDS), width=3.4)
    for kind, axes in zip(KINDS, all_axes, strict=True):
        baseline = _schedule(experiment, kind)
        for arm, multiple in (("baseline", None), ("poe", 1), ("largest", 2)):
            schedule = rescale(baseline, estimate.learning_rate(multiple), horizon=epochs) if multiple else baseline
            rates, (color, marker) = [schedule(epoch) for epoch in range(epochs)], style.look(arm)
            name, drawn = f"{arm_named(arm).title}: η¹ = {rates[0]:.3g}", "steps-post" if kind == "step" else "default"
            line = axes.plot(range(1, epochs + 1), rates, color=color, marker=marker, label=name, drawstyle=drawn)
            line[0].set_markevery(max(1, epochs // 8))
        trained = kind == experiment.training.schedule["kind"]
        style.label(axes, "epoch", "learning rate ηᵏ (no unit)", f"{kind}{', as trained' if trained else ''}")
        axes.set_ylim(bottom=0)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _schedule(experiment: Experiment, kind: str) -> "Schedule":
    """The experiment's schedule γᵏ if it is of this kind; otherwise one of the same length that falls to at most 1%."""
    from excite.schedules import SCHEDULES

    epochs, (trained, options) = experiment.training.epochs, kind_and_options("", experiment.training.schedule)
    shapes: dict[str, dict[str, Any]] = {
        "step": {"milestones": sorted({max(1, epochs // 2), max(1, 3 * epochs // 4)})},
        "exponential": {"decay": 0.01 ** (1 / epochs)},
        "cosine": {"epochs": epochs},
    }
    return build("schedule", SCHEDULES, kind, options if kind == trained else shapes[kind] | {"rate": options["rate"]})


def figure_4(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per network, a line per arm. Mean and range over seeds."""
    panels = []
    for group in same_but(["training.batch_size"], runs):
        rows = [row for run in group for row in tidy([run]) if row.arm.certified]
        if len({row.batch_size for row in rows}) > 1:
            panels.append((group, rows))
    if not panels:
        raise InputError(
            "figure-4 needs certified trainings of one network, of three epochs or more, at two or more batch sizes. "
            "Try `excite sweep figure-4-small` or `excite batch-size EXPERIMENT --try 32 128 512`."
        )
    figure, all_axes = style.panels(1, len(panels), width=4.8, height=3.4)
    for (_, rows), axes, title in zip(panels, all_axes, titles([group for group, _ in panels]), strict=True):
        for name, trained in by_arm(rows).items():
            points: style.Points = {}
            for row in trained:
                if certified := row.arm.certified:
                    points.setdefault(row.batch_size, []).append(100 * certified.acute / certified.steps)
            style.mean_and_range(axes, points, style.look(name), arm_title([row.arm for row in trained]))
        sizes = sorted({row.batch_size for row in rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, list(map(str, sizes)))
        axes.set_xticks([], minor=True)
        axes.set_ylim(-3, 103)
        style.label(axes, "batch size (images, log scale)", "epochs where Assumption 2 holds (%)", title)
    style.legend_below(figure, all_axes)
    return figure


def _algorithm_1(name: str, runs: Sequence[RunFolder]) -> tuple[str, RunFolder, dict[str, Any], LipschitzEstimate]:
    """The title, the run, the heat map (M × N × initial shapes) and the L of the first run that used Algorithm 1.

    That is the run's own estimator, or else Algorithm 1 with its defaults.
    """
    for run in runs:
        experiment = run.experiment
        is_own = experiment.lipschitz["method"] == ALGORITHM_1
        answer = run.stored_estimates()[experiment.own_name if is_own else ALGORITHM_1]
        if isinstance(answer, LipschitzEstimate):
            title = f"{experiment.network}, {experiment.data_set}, seed {experiment.seed}, "
            stored = answer.details["heat_map"]  # L is None where there was no fit
            arrays = {key: np.array(stored[key], dtype=np.float64) for key in ("constants", "p_values")}
            shapes = {"initial_shapes": [f"{shape:g}" for shape in stored["initial_shapes"]]}
            return f"{title}{experiment.training.epochs} epochs", run, stored | arrays | shapes, answer
    raise InputError(
        f"{name} needs a run with L by {ALGORITHM_1}, with its heat map. `excite run figures-5-6-small` makes one."
    )


def figure_5(runs: Sequence[RunFolder]) -> "Figure":
    """(a) p-values by initial shape for the chosen M; (b) L and (c) the largest p-value for each (M, N).

    If the experiment repeats the paper's figure, the paper's L is shown, too.
    """
    title, run, cells, estimate = _algorithm_1("figure-5", runs)
    n_maxima, n_points = cells["n_maxima"], cells["n_points"]
    # For each (M, N), the initial shape with the largest p-value
    best = np.where(np.isfinite(cells["constants"]), cells["p_values"], -1).argmax(axis=2)
    constants, p_values = (
        np.take_along_axis(cells[key], best[:, :, None], axis=2)[:, :, 0] for key in ("constants", "p_values")
    )
    row, column = n_maxima.index(estimate.details["M"]), n_points.index(estimate.details["N"])
    beside_paper = at_full_scale(run.experiment.name) == REPEATS_THE_PAPER
    figure, axes = style.panels(2 if beside_paper else 1, 2 if beside_paper else 3, width=4.4, height=3.5)
    name = f"(a) p-value for M = {n_maxima[row]}"
    _heat(axes[0], cells["p_values"][row], (SHAPE, cells["initial_shapes"]), (POINTS, n_points), name=name)
    _frame(axes[0], column, int(best[row, column]))
    columns, rows = (POINTS, n_points), (MAXIMA, n_maxima)
    _heat(axes[1], constants, columns, rows, name="(b) L at the best initial shape", logarithmic=True)
    _heat(axes[2], p_values, columns, rows, name="(c) largest p-value (Kolmogorov–Smirnov)")
    _frame(axes[1], row, column)
    _frame(axes[2], row, column)
    if beside_paper:
        columns, rows = (POINTS, FIGURE_5["n_points"]), (MAXIMA, FIGURE_5["n_maxima"])
        name = "L in the paper's Figure 5 (b)"
        _heat(axes[3], np.array(FIGURE_5["constants"]), columns, rows, name=name, logarithmic=True)
    sure = "" if estimate.identified else ", NOT identified"
    figure.suptitle(f"{title}\nframed: L = {estimate.constant:.3g}{sure}", fontsize=9)
    return figure


def figure_6(runs: Sequence[RunFolder]) -> "Figure":
    """L and p-value for each (M, N) and initial shape."""
    title, _, cells, _ = _algorithm_1("figure-6", runs)
    pairs = [f"{m}, {n}" for m in cells["n_maxima"] for n in cells["n_points"]]
    columns, rows = (SHAPE, cells["initial_shapes"]), (f"{MAXIMA}, {POINTS}", pairs)
    figure, axes = style.panels(1, 2, width=4.8, height=0.27 * len(pairs) + 1.2)
    constants, p_values = (cells[key].reshape(len(pairs), -1) for key in ("constants", "p_values"))
    _heat(axes[0], constants, columns, rows, name="L (log scale)", logarithmic=True)
    _heat(axes[1], p_values, columns, rows, name="p-value (Kolmogorov–Smirnov)")
    figure.suptitle(title, fontsize=9)
    return figure


def _heat(
    axes: "Axes",
    values: Floats,
    columns: tuple[str, Sequence[Any]],
    rows: tuple[str, Sequence[Any]],
    *,
    name: str,
    logarithmic: bool = False,
) -> None:
    """Cells with their values written in them; `columns` and `rows` hold the title of the axis and its values."""
    from matplotlib.colors import LogNorm, Normalize

    usable = values[np.isfinite(values) & (values > 0)]
    norm = LogNorm(usable.min() / 1.02, usable.max() * 1.02) if logarithmic else Normalize(0, 1)
    axes.pcolormesh(np.ma.masked_invalid(values), cmap=style.HEAT, norm=norm, edgecolors="none")
    axes.invert_yaxis()
    for axis, (title, places) in ((axes.xaxis, columns), (axes.yaxis, rows)):
        axis.set_ticks(np.arange(len(places)) + 0.5, places)
        axis.set_label_text(title)
    axes.tick_params(length=0)
    for (row, column), value in np.ndenumerate(values):
        text = "–" if math.isnan(value) else f"{value:.3g}" if logarithmic else f"{value:.2f}"
        ink = "#ffffff" if norm(value) < 0.5 else "#000000"  # the lightness of the colors grows evenly
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color=ink)
    axes.set_title(name)


def _frame(axes: "Axes", row: int, column: int) -> None:
    from matplotlib.patches import Rectangle

    corner, side = (column + 0.04, row + 0.04), 0.92
    axes.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=style.VERMILION, linewidth=3))


class Descent(NamedTuple):
    """Gradient descent at a multiple of 1/L; one value per step."""

    multiple: float
    cosines: Floats  # of the angle between the step and the rest of the way
    certified: NDArray[np.bool_]
    residuals: Floats


def theorem_1(runs: Sequence[RunFolder]) -> "Figure":
    """A column per problem: two quadratics with a known θ*, and each run, whose θ* is the end of its training."""
    problems = {title: _quadratic(curvatures) for title, curvatures in QUADRATICS.items()}
    for run in runs:
        if descents := _descents(run):
            seed = f", seed {run.experiment.seed}" if len(runs) > 1 else ""
            problems[f"{run.experiment.network}, {run.experiment.data_set}{seed}"] = descents
    if len(problems) == len(QUADRATICS):
        raise InputError(
            "theorem-1 needs arms at multiples of 1/L that recorded every step (full batches, one step per epoch). "
            "`excite run theorem-1` makes them."
        )
    figure, axes = style.panels(1, len(problems), width=4.4, height=2.9)
    for panel, (title, descents) in zip(axes, problems.items(), strict=True):
        _draw_descents(panel, title, descents)
    style.legend_below(figure, axes, columns=5)
    residuals = [descent.residuals for descents in problems.values() for descent in descents]
    worst = np.nanmax(np.concatenate([[0.0], *residuals]))
    figure.suptitle(f"Crosses: not certified. The certified trajectories have a residual of at most {worst:.0e}.")
    return figure


def _quadratic(curvatures: Sequence[float]) -> list[Descent]:
    """Gradient descent on ½ Σ λᵢ θᵢ² from θ = 1; L is the largest λ, and θ* is 0."""
    import torch

    from excite.excitation import certificate

    eigenvalues, goal = torch.tensor(curvatures, dtype=torch.float64), torch.zeros(len(curvatures))
    descents = []
    for multiple in MULTIPLES:
        path = [torch.ones(len(curvatures), dtype=torch.float64)]
        for _ in range(STEPS):
            path.append(path[-1] - multiple / max(curvatures) * eigenvalues * path[-1])
        steps = [certificate(now, after, goal) for now, after in itertools.pairwise(path)]
        cosines, residuals = np.array([(step.span.cosine, step.residual) for step in steps]).T
        descents.append(Descent(multiple, cosines, np.array([step.holds for step in steps]), residuals))
    return descents


def _descents(run: RunFolder) -> list[Descent]:
    from excite.excitation import certify

    descents = []
    for arm in run.arms:
        trace, multiple = arm.trace(), arm.arm.multiple
        if multiple is None or trace is None or len(trace) < 3 or (np.diff(trace.steps) != 1).any():
            continue
        path = certify(trace)
        residuals = np.array([span.residual for span in path.spans])
        descents.append(Descent(multiple, path.angles.cosines, path.certified, residuals))
    return sorted(descents, key=lambda descent: descent.multiple)


def _draw_descents(axes: "Axes", title: str, descents: Sequence[Descent]) -> None:
    for multiple, cosines, certified, _ in descents:
        color, marker = style.look(MULTIPLES.get(multiple, f"{multiple:g}-over-L"))
        steps, every = np.arange(1, len(cosines) + 1), max(1, len(cosines) // 25)
        shown, other = np.flatnonzero(certified)[::every], np.flatnonzero(~certified)[::every]
        axes.plot(steps, cosines, marker, ls="-", lw=1, color=color, label=f"{multiple:g}/L", markevery=shown)
        axes.plot(steps[other], cosines[other], "x", color=color)
    axes.axhline(0, color=style.INK, linewidth=0.8)
    axes.set_ylim(-1.1, 1.1)
    style.label(axes, "step (of gradient descent)", "cosine of step and rest (no unit)", title)
