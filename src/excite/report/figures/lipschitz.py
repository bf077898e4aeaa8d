"""Figures of L: the schedules that start at 1/L and 2/L, every estimator, and Algorithm 1 for every (M, N)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz import ESTIMATORS, LipschitzEstimate
from excite.quantities import number
from excite.registry import build
from excite.report.estimates import by_short_trainings
from excite.report.figures import style
from excite.report.rows import FIGURE_5, at_full_scale
from excite.runs.collection import same_but, titles, without_rate
from excite.runs.experiment import Experiment
from excite.runs.folder import RunFolder, stored_estimates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from excite.schedules import Schedule

KINDS = ("step", "exponential", "cosine")
SPREAD = 1.06  # the factor between neighboring intervals, so that they do not overlap
ALGORITHM_1 = "epochs"
REPEATS_THE_PAPER = "figures-5-6"
Estimates = dict[str, list[tuple[float, LipschitzEstimate]]]  # by method: the baseline's rate and the estimate


def figure_1(runs: Sequence[RunFolder]) -> "Figure":
    """The rates of baseline, 1/L and 2/L for each kind of schedule, from the first run with an estimate of L."""
    from excite.schedules import rescale

    run = next((run for run in runs if run.estimate), None)
    if run is None or run.estimate is None:
        raise InputError("figure-1 needs a run with an estimate of L. `excite estimate RUN --train` makes one.")
    experiment, estimate = run.experiment, run.estimate
    epochs = range(experiment.training.epochs)
    figure, all_axes = style.panels(1, len(KINDS), width=3.4)
    for kind, axes in zip(KINDS, all_axes, strict=True):
        baseline = _schedule(experiment, kind)
        poe = rescale(baseline, estimate.learning_rate(), horizon=len(epochs))
        arms = {
            "baseline": ("baseline, η¹ = {:.3g}", baseline),
            "poe": ("PoE-motivated, η¹ = 1/L = {:.3g}", poe),
            "largest": ("largest convergent, η¹ = 2/L = {:.3g}", rescale(baseline, estimate.learning_rate(2))),
        }
        for arm, (name, schedule) in arms.items():
            color, marker = style.look(arm)
            rates = [schedule(epoch) for epoch in epochs]
            axes.plot(
                [epoch + 1 for epoch in epochs],
                rates,
                color=color,
                marker=marker,
                markevery=max(1, len(epochs) // 8),
                drawstyle="steps-post" if kind == "step" else "default",
                label=name.format(rates[0]),
            )
        trained = kind == experiment.training.schedule["kind"]
        style.label(axes, "epoch", "learning rate ηᵏ (no unit)", f"{kind}{', as trained' if trained else ''}")
        axes.set_ylim(bottom=0)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _schedule(experiment: Experiment, kind: str) -> "Schedule":
    """The experiment's schedule γᵏ if it is of this kind; otherwise one of the same length that falls to at most 1%."""
    from excite.schedules import SCHEDULES

    epochs, schedule = experiment.training.epochs, experiment.training.schedule
    trained = {
        key: number(value) if isinstance(value, str) else value for key, value in schedule.items() if key != "kind"
    }
    shapes: dict[str, dict[str, Any]] = {
        "step": {"milestones": sorted({max(1, epochs // 2), max(1, 3 * epochs // 4)})},
        "exponential": {"decay": 0.01 ** (1 / epochs)},
        "cosine": {"epochs": epochs},
    }
    options = trained if kind == schedule["kind"] else shapes[kind] | {"rate": trained["rate"]}
    return build("schedule", SCHEDULES, kind, options)


def estimators(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per network: each estimate of L against the baseline's rate, with 1/η, 2/η and the edge of stability."""
    groups = [(group, by_method) for group in same_but(without_rate, runs) if (by_method := _estimates(group))]
    if not groups:
        raise InputError(
            "estimators needs estimates of L from a baseline's trace. Name run folders whose baseline was trained and "
            "recorded."
        )
    figure, all_axes = style.panels(1, len(groups), width=4.8, height=3.8)
    for (group, by_method), axes, title in zip(groups, all_axes, titles([group for group, _ in groups]), strict=True):
        _draw_estimates(axes, group, by_method)
        style.label(axes, "the baseline's first learning rate (no unit, log scale)", "L (no unit, log scale)", title)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _estimates(group: Sequence[RunFolder]) -> Estimates:
    by_method: Estimates = {method: [] for method in _from_traces()}
    for run in (run for run in group if run.arm("baseline").trained):
        answers = {method: stored_estimates(run)[method] for method in by_method}
        estimates = {method: answer for method, answer in answers.items() if isinstance(answer, LipschitzEstimate)}
        if not estimates and run.arm("baseline").trace() is not None:
            reasons = "; ".join(f"{method}: {str(reason).removesuffix('.')}" for method, reason in answers.items())
            raise InputError(f"estimators has nothing to show for {run.path}: {reasons}.")
        for method, estimate in estimates.items():
            by_method[method].append((run.arm("baseline").rate, estimate))
    return {method: estimates for method, estimates in by_method.items() if estimates}


def _from_traces() -> list[str]:
    return [name for name, kind in ESTIMATORS.items() if kind.needs == "trace"]


def _draw_estimates(axes: "Axes", group: Sequence[RunFolder], by_method: Estimates) -> None:
    rates = sorted({rate for estimates in by_method.values() for rate, _ in estimates})
    constants = [estimate.constant for estimates in by_method.values() for _, estimate in estimates]
    ends = np.array([rates[0] / 2, rates[-1] * 2])
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.log_ticks(axes.xaxis, *ends)
    style.log_ticks(axes.yaxis, min(constants), max(constants))
    axes.set_xlim(*ends)
    for place, method in enumerate(by_method):
        color, marker = style.LOOKS[_from_traces().index(method) % len(style.LOOKS)]
        shift = SPREAD ** (place - (len(by_method) - 1) / 2)
        for count, (rate, estimate) in enumerate(by_method[method]):
            low, high = estimate.interval
            above = max(high - estimate.constant, 0) if np.isfinite(high) else 0
            axes.errorbar(
                [rate * shift],
                [estimate.constant],
                yerr=[[max(estimate.constant - low, 0)], [above]],
                fmt=marker,
                color=color,
                markerfacecolor=color if estimate.identified else "none",
                markersize=6,
                capsize=2,
                label=None if count else ESTIMATORS[method].title,
            )
    if not all(estimate.identified for estimates in by_method.values() for _, estimate in estimates):
        axes.plot([], [], "o", color=style.INK, markerfacecolor="none", label="hollow: not identified")
    edges = {edge.constant: edge for run in group if (edge := by_short_trainings(run))}
    for count, edge in enumerate(edges.values()):
        axes.axhline(edge.constant, color=style.INK, linewidth=1.6, label=None if count else "edge")
        axes.axhspan(*edge.interval, color=style.INK, alpha=0.12, linewidth=0)
    for multiple, dashes in ((1, (0, (1, 1.5))), (2, (0, (5, 2)))):
        axes.plot(ends, multiple / ends, color=style.INK, linewidth=0.9, linestyle=dashes, label=f"{multiple}/η")


def _algorithm_1(name: str, runs: Sequence[RunFolder]) -> tuple[str, RunFolder, dict[str, Any], LipschitzEstimate]:
    """The title, the run, the heat map (M × N × initial shapes) and the L of the first run that used Algorithm 1."""
    answers = [(run, stored_estimates(run)[ALGORITHM_1]) for run in runs]
    for run, answer in answers:
        if isinstance(answer, LipschitzEstimate):
            experiment = run.experiment
            title = f"{experiment.network}, {experiment.data_set}, seed {experiment.seed}, "
            arrays = {key: np.array(answer.details["heat_map"][key]) for key in ("constants", "p_values", "identified")}
            return f"{title}{experiment.training.epochs} epochs", run, answer.details["heat_map"] | arrays, answer
    run, reason = answers[0]
    raise InputError(
        f"{name} needs L by {ALGORITHM_1}, with its heat map. {run.path}: {str(reason).removesuffix('.')}. `excite run "
        "figures-5-6-small` makes a run that has it."
    )


def figure_5(runs: Sequence[RunFolder]) -> "Figure":
    """(a) p-values by initial shape for the chosen M; (b) L and (c) the largest p-value for each (M, N).

    If the experiment repeats the paper's figure, the paper's L is shown, too.
    """
    title, run, cells, estimate = _algorithm_1("figure-5", runs)
    details, n_maxima, n_points = estimate.details, cells["n_maxima"], cells["n_points"]
    best = cells["p_values"].argmax(axis=2)[:, :, None]  # for each (M, N) the initial shape with the largest p-value
    constants, p_values, identified = (
        np.take_along_axis(cells[key], best, axis=2)[:, :, 0] for key in ("constants", "p_values", "identified")
    )
    row, column = n_maxima.index(details["M"]), n_points.index(details["N"])
    pairs = details["pairs"] if details["pairs_pass"] else []
    passing = [(n_maxima.index(pair["M"]), n_points.index(pair["N"])) for pair in pairs]
    beside_paper = at_full_scale(run.experiment.name) == REPEATS_THE_PAPER
    figure, axes = style.panels(2 if beside_paper else 1, 2 if beside_paper else 3, width=4.4, height=3.5)
    shapes = [f"{shape:g}" for shape in cells["initial_shapes"]]
    _heat(axes[0], cells["p_values"][row], shapes, n_points, name=f"(a) p-value for M = {n_maxima[row]}")
    _frame(axes[0], column, int(best[row, column, 0]), width=3)
    axes[0].set_xlabel("initial shape (no unit)")
    axes[0].set_ylabel("N (points per block)")
    note = "" if identified.all() else "; * not identified, a bound"
    name = f"(b) L at the best initial shape{note}"
    _heat(axes[1], constants, n_points, n_maxima, name=name, logarithmic=True, starred=~identified)
    _heat(axes[2], p_values, n_points, n_maxima, name="(c) largest p-value (Kolmogorov–Smirnov)")
    for panel in axes[1:3]:
        for pair in passing:
            _frame(panel, *pair, width=1.2)
        _frame(panel, row, column, width=3)
    if beside_paper:
        paper, name = np.array(FIGURE_5["constants"]), "L in the paper's Figure 5 (b)"
        _heat(axes[3], paper, FIGURE_5["n_points"], FIGURE_5["n_maxima"], name=name, logarithmic=True)
    for panel in axes[1:]:
        panel.set_xlabel("N (points per block)")
        panel.set_ylabel("M (block maxima)")
    value = f"{'L =' if estimate.identified else 'L is NOT identified, bounded by'} {estimate.constant:.3g}"
    heading = f"{title}: {value} (thick frame); thin frames pass α = {details['alpha']:g}"
    figure.suptitle(style.wrapped(heading, figure.get_figwidth()), fontsize=9)
    return figure


def figure_6(runs: Sequence[RunFolder]) -> "Figure":
    """L and p-value for each (M, N) and initial shape."""
    title, _, cells, _ = _algorithm_1("figure-6", runs)
    pairs = [f"{m}, {n}" for m in cells["n_maxima"] for n in cells["n_points"]]
    shapes = [f"{shape:g}" for shape in cells["initial_shapes"]]
    figure, axes = style.panels(1, 2, width=4.8, height=0.27 * len(pairs) + 1.2)
    size = (len(pairs), len(shapes))
    _heat(axes[0], cells["constants"].reshape(size), shapes, pairs, name="L (log scale)", logarithmic=True)
    _heat(axes[1], cells["p_values"].reshape(size), shapes, pairs, name="p-value (Kolmogorov–Smirnov)")
    for panel in axes:
        panel.set_xlabel("initial shape (no unit)")
        panel.set_ylabel("M (block maxima), N (points per block)")
    figure.suptitle(title, fontsize=9)
    return figure


def _heat(
    axes: "Axes",
    values: NDArray[np.float64],
    columns: Sequence[Any],
    rows: Sequence[Any],
    *,
    name: str,
    logarithmic: bool = False,
    starred: NDArray[np.bool_] | None = None,
) -> None:
    """Cells with their values written in black or white, whichever has more contrast; a star where `starred`."""
    from matplotlib.colors import LogNorm, Normalize

    usable = values[np.isfinite(values) & (values > 0)]
    norm = LogNorm(usable.min() / 1.02, usable.max() * 1.02) if logarithmic else Normalize(0, 1)
    mesh = axes.pcolormesh(np.ma.masked_invalid(values), cmap=style.HEAT, norm=norm, edgecolors="none")
    axes.invert_yaxis()
    axes.set_xticks(np.arange(len(columns)) + 0.5, [str(column) for column in columns])
    axes.set_yticks(np.arange(len(rows)) + 0.5, [str(row) for row in rows])
    axes.tick_params(length=0)
    colors = mesh.cmap(norm(values))
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = colors[row, column]
        is_dark = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.18
        text = f"{value:.3g}" if logarithmic else f"{value:.2f}"
        text += "*" if starred is not None and starred[row, column] else ""
        ink = "#ffffff" if is_dark else "#000000"
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color=ink)
    axes.set_title(name)


def _frame(axes: "Axes", row: int, column: int, *, width: float) -> None:
    from matplotlib.patches import Rectangle

    corner, side = (column + 0.04, row + 0.04), 0.92
    axes.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=style.VERMILION, linewidth=width))
