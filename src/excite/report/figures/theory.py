"""Figures of the theory: where Assumption 2 holds against the batch size, and where Theorem 1 certifies steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.report.figures import style
from excite.runs.collection import same_but, titles, without_batch_size
from excite.runs.folder import RunFolder, arm_titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MULTIPLES = {0.5: "half", 1.0: "poe", 1.5: "beyond", 2.0: "largest"}  # of 1/L, and the arm that has the same color
QUADRATICS = {"a quadratic in one dimension": (1.0,), "a quadratic, λ = 1, 0.3, 0.1": (1.0, 0.3, 0.1)}
STEPS = 40  # on the quadratics
SMALLEST = 1e-6  # smaller distances, as a share of the first, are drawn here
Floats = NDArray[np.float64]
Fractions = dict[str, dict[float, list[float]]]  # by arm and batch size: in %, one per seed


def figure_4(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per network, a line per arm. Mean and range over seeds."""
    groups = [(group, _fractions(group)) for group in same_but(without_batch_size, runs)]
    groups = [(group, fractions) for group, fractions in groups if len(_sizes(fractions)) > 1]
    if not groups:
        raise InputError(
            "figure-4 needs certified trainings of one network, of three epochs or more, at two or more batch sizes. "
            "Try `excite sweep figure-4-small` or `excite batch-size EXPERIMENT --try 32 128 512`; `excite train RUN` "
            "certifies runs of older versions."
        )
    figure, all_axes = style.panels(1, len(groups), width=4.8, height=3.4)
    for (group, fractions), axes, title in zip(groups, all_axes, titles([group for group, _ in groups]), strict=True):
        names = arm_titles(group)
        for name, points in fractions.items():
            style.mean_and_range(axes, points, style.look(name), names[name])
        sizes = _sizes(fractions)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_xticks([], minor=True)
        axes.set_ylim(-3, 103)
        style.label(axes, "batch size (images, log scale)", "epochs where Assumption 2 holds (%)", title)
    style.legend_below(figure, all_axes)
    return figure


def _fractions(group: Sequence[RunFolder]) -> Fractions:
    fractions: Fractions = {}
    for run in group:
        for arm in run.arms:
            if arm.certified:
                size = float(arm.outcome.batch_size or run.experiment.training.batch_size)
                share = 100 * arm.certified.acute / arm.certified.steps
                fractions.setdefault(arm.name, {}).setdefault(size, []).append(share)
    return fractions


def _sizes(fractions: Fractions) -> list[float]:
    return sorted({size for points in fractions.values() for size in points})


@dataclass(frozen=True, eq=False)
class Descent:
    """Gradient descent at a multiple of 1/L; one value per step."""

    multiple: float
    cosines: Floats  # of the angle between the step and the rest of the way
    certified: NDArray[np.bool_]
    distances: Floats  # ‖θᵏ − θ*‖ as a share of the first
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
    figure, axes = style.panels(2, len(problems), width=4.4, height=2.9)
    for column, (title, descents) in enumerate(problems.items()):
        _draw_descents(axes[column], axes[len(problems) + column], title, descents)
    style.legend_below(figure, axes, columns=5)
    residuals = [descent.residuals for descents in problems.values() for descent in descents]
    worst = np.nanmax(np.concatenate([[0.0], *residuals]))
    figure.suptitle(f"Hollow marks: not certified. The certified trajectories have a residual of at most {worst:.0e}.")
    return figure


def _quadratic(curvatures: Sequence[float]) -> list[Descent]:
    """Gradient descent on ½ Σ λᵢ θᵢ² from θ = 1; L is the largest λ, and θ* is 0."""
    import torch

    from excite.excitation import certify_descent

    eigenvalues = torch.tensor(curvatures, dtype=torch.float64)
    descents = []
    for multiple in MULTIPLES:
        path = certify_descent(
            lambda theta: eigenvalues * theta,
            torch.ones(len(curvatures)),
            rate=multiple / max(curvatures),
            steps=STEPS,
            goal=torch.zeros(len(curvatures)),
        )
        shares = path.distances[:-1] / path.distances[0]
        descents.append(Descent(multiple, path.cosines, path.certified, shares, path.residuals))
    return descents


def _descents(run: RunFolder) -> list[Descent]:
    from excite.excitation import certify

    descents = []
    for arm in run.arms:
        trace, multiple = arm.trace(), arm.arm.multiple
        if multiple is None or trace is None or len(trace) < 3 or (np.diff(trace.steps) != 1).any():
            continue
        path = certify(trace)
        distances = trace.parameter_distances[:-2, -1]
        residuals = np.array([span.residual for span in path.spans])
        shares = distances / distances[0]
        descents.append(Descent(multiple, path.angles.cosines, path.certified, shares, residuals))
    return sorted(descents, key=lambda descent: descent.multiple)


def _draw_descents(top: "Axes", bottom: "Axes", title: str, descents: Sequence[Descent]) -> None:
    for descent in descents:
        color, marker = style.look(MULTIPLES.get(descent.multiple, f"{descent.multiple:g}-over-L"))
        steps = np.arange(1, len(descent.cosines) + 1)
        every = max(1, len(steps) // 25)
        for axes, values in ((top, descent.cosines), (bottom, np.maximum(descent.distances, SMALLEST))):
            axes.plot(steps, values, color=color, linewidth=1, label=f"{descent.multiple:g}/L" if axes is top else None)
            for where, face in ((descent.certified, color), (~descent.certified, "none")):
                shown = np.flatnonzero(where)[::every]
                axes.plot(steps[shown], values[shown], linestyle="", marker=marker, color=color, markerfacecolor=face)
    top.axhline(0, color=style.INK, linewidth=0.8)
    top.set_ylim(-1.1, 1.1)
    bottom.set_yscale("log")
    style.label(top, "step (of gradient descent)", "cosine of step and rest (no unit)", title)
    style.label(bottom, "step (of gradient descent)", "distance to θ* (share of the first)")
