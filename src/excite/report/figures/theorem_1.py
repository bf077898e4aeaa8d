"""Theorem 1: at which steps of gradient descent the certificate holds, from 0.5/L to 2/L, and how far θ* still is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.report.figures import style
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MULTIPLES = (0.5, 1.0, 1.5, 2.0)
QUADRATICS = {"a quadratic in one dimension": (1.0,), "a quadratic, λ = 1, 0.3, 0.1": (1.0, 0.3, 0.1)}
STEPS = 40  # of the quadratics
SMALLEST = 1e-6  # distances below this share of the first are drawn there
Floats = NDArray[np.float64]
Look = tuple[str, str]  # colour and marker


@dataclass(frozen=True, eq=False)
class Descent:
    """One descent at a multiple of 1/L; per step: cosine, certified or not, ‖θᵏ − θ*‖ over that at the start."""

    multiple: float
    cosines: Floats
    certified: NDArray[np.bool_]
    distances: Floats
    residual: float  # the largest


def theorem_1(runs: Sequence[RunFolder]) -> "Figure":
    """A column per problem: two quadratics, whose θ* is known, and each run, whose θ* is where its arm ends."""
    problems = {title: _quadratic(curvatures) for title, curvatures in QUADRATICS.items()}
    for run in runs:
        if lines := _of_run(run):
            seed = f", seed {run.experiment.seed}" if len(runs) > 1 else ""
            problems[f"{run.experiment.network}, {run.experiment.data_set}{seed}"] = lines
    if len(problems) == len(QUADRATICS):
        raise InputError(
            "theorem-1 needs arms at multiples of 1/L with traces of their every step (full batches, an epoch being "
            "one step). `excite run theorem-1` makes them."
        )
    multiples = sorted({line.multiple for lines in problems.values() for line in lines})
    looks = dict(zip(multiples, zip(cycle(style.COLOURS), cycle(style.MARKERS), strict=False), strict=False))
    figure, axes = style.panels(2, len(problems), width=4.4, height=2.9)
    for column, (title, lines) in enumerate(problems.items()):
        _draw(axes[column], axes[len(problems) + column], title, lines, looks)
    style.legend_below(figure, axes, columns=5)
    worst = max(line.residual for lines in problems.values() for line in lines)
    figure.suptitle(f"Hollow marks: no certificate. Where there is one, its trajectory misses by {worst:.0e} at most.")
    return figure


def _quadratic(curvatures: Sequence[float]) -> list[Descent]:
    """Gradient descent on ½ Σ λᵢ θᵢ² from θ = 1, whose L is the largest λ and whose θ* is 0."""
    import torch

    from excite.excitation import certify_descent

    eigenvalues = torch.tensor(curvatures, dtype=torch.float64)
    lines = []
    for multiple in MULTIPLES:
        found = certify_descent(
            lambda theta: eigenvalues * theta,
            torch.ones(len(curvatures)),
            rate=multiple / max(curvatures),
            steps=STEPS,
            goal=torch.zeros(len(curvatures)),
        )
        shares = found.distances[:-1] / found.distances[0]
        lines.append(Descent(multiple, found.cosines, found.certified, shares, _largest(found.residuals)))
    return lines


def _of_run(run: RunFolder) -> list[Descent]:
    from excite.excitation import certify

    lines = []
    for arm in run.arms:
        trace = arm.trace()
        multiple = arm.arm.multiple
        if multiple is None or trace is None or len(trace) < 3 or (np.diff(trace.steps) != 1).any():
            continue
        found = certify(trace)
        distances = trace.parameter_distances[:-2, -1]
        residuals = np.array([span.residual for span in found.spans])
        lines.append(
            Descent(multiple, found.angles.cosines, found.certified, distances / distances[0], _largest(residuals))
        )
    return sorted(lines, key=lambda line: line.multiple)


def _draw(top: "Axes", bottom: "Axes", title: str, lines: Sequence[Descent], looks: Mapping[float, Look]) -> None:
    for line in lines:
        colour, marker = looks[line.multiple]
        steps = np.arange(1, len(line.cosines) + 1)
        sparse = max(1, len(steps) // 25)
        for axes, values in ((top, line.cosines), (bottom, np.maximum(line.distances, SMALLEST))):
            name = f"{line.multiple:g}/L" if axes is top else None
            axes.plot(steps, values, color=colour, linewidth=1, label=name)
            for where, face in ((line.certified, colour), (~line.certified, "none")):
                shown = np.flatnonzero(where)[::sparse]
                axes.plot(steps[shown], values[shown], linestyle="", marker=marker, color=colour, markerfacecolor=face)
    top.axhline(0, color=style.INK, linewidth=0.8)
    top.set_ylim(-1.1, 1.1)
    bottom.set_yscale("log")
    style.label(top, "step (of gradient descent)", "cosine of step and rest (no unit)", title)
    style.label(bottom, "step (of gradient descent)", "distance to θ* (share of the first)")


def _largest(residuals: Floats) -> float:
    return float(np.nanmax(residuals)) if np.isfinite(residuals).any() else 0.0
