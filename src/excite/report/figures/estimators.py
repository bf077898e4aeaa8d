"""What each estimator says L is, from baselines at several rates, beside the edge of stability itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from excite.errors import InputError
from excite.lipschitz import ESTIMATORS, LipschitzEstimate
from excite.report.figures import style
from excite.report.trainings import by_short_trainings
from excite.runs.collection import same_but, titles, without_rate
from excite.runs.folder import RunFolder, stored_estimates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPREAD = 1.06  # neighbours' intervals are drawn this factor apart
Estimates = dict[str, list[tuple[float, LipschitzEstimate]]]  # by method: the baseline's rate and what it says


def estimators(runs: Sequence[RunFolder]) -> "Figure":
    """A panel per network: L against the baseline's rate; hollow marks are not identified; lines of 1/η and 2/η."""
    groups = [(group, found) for group in same_but(without_rate, runs) if (found := _estimates(group))]
    if not groups:
        raise InputError(
            "estimators needs what the estimators said of a baseline's trace. Name run folders whose baseline is "
            "trained and recorded."
        )
    figure, all_axes = style.panels(1, len(groups), width=4.8, height=3.8)
    for (group, found), axes, title in zip(groups, all_axes, titles([group for group, _ in groups]), strict=True):
        _draw(axes, group, found)
        style.label(axes, "the baseline's first learning rate (no unit, log scale)", "L (no unit, log scale)", title)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _draw(axes: "Axes", group: Sequence[RunFolder], found: Estimates) -> None:
    rates = sorted({rate for estimates in found.values() for rate, _ in estimates})
    constants = [estimate.constant for estimates in found.values() for _, estimate in estimates]
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.log_ticks(axes.xaxis, rates[0] / 2, rates[-1] * 2)
    style.log_ticks(axes.yaxis, min(constants), max(constants))
    axes.set_xlim(rates[0] / 2, rates[-1] * 2)
    for number, method in enumerate(found):
        colour, marker = style.LOOKS[_from_traces().index(method) % len(style.LOOKS)]
        shift = SPREAD ** (number - (len(found) - 1) / 2)
        for count, (rate, estimate) in enumerate(found[method]):
            low, high = estimate.interval
            errors = [[max(estimate.constant - low, 0)], [max(high - estimate.constant, 0) if np.isfinite(high) else 0]]
            axes.errorbar(
                [rate * shift],
                [estimate.constant],
                yerr=errors,
                fmt=marker,
                color=colour,
                markerfacecolor=colour if estimate.identified else "none",
                markersize=6,
                capsize=2,
                label=None if count else ESTIMATORS[method].title,
            )
    if not all(estimate.identified for estimates in found.values() for _, estimate in estimates):
        axes.plot([], [], "o", color=style.INK, markerfacecolor="none", label="hollow: not identified")
    edges = [edge for run in group if (edge := by_short_trainings(run))]
    for count, edge in enumerate({edge.constant: edge for edge in edges}.values()):
        axes.axhline(
            edge.constant,
            color=style.INK,
            linewidth=1.6,
            label=None if count else "edge",
        )
        axes.axhspan(*edge.interval, color=style.INK, alpha=0.12, linewidth=0)
    ends = np.array([rates[0] / 2, rates[-1] * 2])
    for multiple, dashes in ((1, (0, (1, 1.5))), (2, (0, (5, 2)))):
        axes.plot(ends, multiple / ends, color=style.INK, linewidth=0.9, linestyle=dashes, label=f"{multiple}/η")


def _estimates(group: Sequence[RunFolder]) -> Estimates:
    found: Estimates = {method: [] for method in _from_traces()}
    for run in (run for run in group if run.arm("baseline").trained):
        answers = {method: stored_estimates(run)[method] for method in found}
        said = {method: answer for method, answer in answers.items() if isinstance(answer, LipschitzEstimate)}
        if not said and run.arm("baseline").trace() is not None:
            reasons = "; ".join(f"{method}: {reason}" for method, reason in answers.items())
            raise InputError(f"estimators has nothing to show of {run.path}: {reasons}.".replace("..", "."))
        for method, estimate in said.items():
            found[method].append((run.arm("baseline").rate, estimate))
    return {method: estimates for method, estimates in found.items() if estimates}


def _from_traces() -> list[str]:
    return [name for name, kind in ESTIMATORS.items() if kind.needs == "trace"]
