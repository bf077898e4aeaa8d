"""Figure 1: the baseline's schedule and its 1/L and 2/L twins, for step, exponential and cosine decay."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from excite.errors import InputError
from excite.quantities import number
from excite.registry import build
from excite.report.figures import style
from excite.runs.experiment import Experiment
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from excite.schedules import Schedule

KINDS = ("step", "exponential", "cosine")


def figure_1(runs: Sequence[RunFolder]) -> "Figure":
    """From the first run with an estimate of L; its own schedule is drawn as it was, the other kinds at its length."""
    from excite.schedules import rescale

    run = next((run for run in runs if run.estimate), None)
    if run is None or run.estimate is None:
        raise InputError("figure-1 needs a run with an estimate of L. `excite estimate RUN --train` makes one.")
    experiment, estimate = run.experiment, run.estimate
    epochs = range(experiment.training.epochs)
    figure, all_axes = style.panels(1, len(KINDS), width=3.4)
    for kind, axes in zip(KINDS, all_axes, strict=True):
        baseline = _schedule(experiment, kind)
        arms = (
            ("baseline", "baseline, η¹ = {:.3g}", baseline),
            (
                "poe",
                "PoE-motivated, η¹ = 1/L = {:.3g}",
                rescale(baseline, estimate.learning_rate(), horizon=len(epochs)),
            ),
            ("largest", "largest convergent, η¹ = 2/L = {:.3g}", rescale(baseline, estimate.learning_rate(2))),
        )
        for arm, name, schedule in arms:
            colour, marker = style.look(arm)
            rates = [schedule(epoch) for epoch in epochs]
            every = max(1, len(epochs) // 8)
            axes.plot(
                [epoch + 1 for epoch in epochs],
                rates,
                color=colour,
                marker=marker,
                markevery=every,
                drawstyle="steps-post" if kind == "step" else "default",
                label=name.format(rates[0]),
            )
        own = kind == experiment.training.schedule["kind"]
        style.label(axes, "epoch", "learning rate ηᵏ (no unit)", f"{kind}{', as trained' if own else ''}")
        axes.set_ylim(bottom=0)
    style.legend_below(figure, all_axes, columns=3)
    return figure


def _schedule(experiment: Experiment, kind: str) -> "Schedule":
    """The experiment's own γᵏ if it is of this kind; else one of its length that falls to 1% or less."""
    from excite.schedules import SCHEDULES

    epochs = experiment.training.epochs
    own = {key: number(value) if isinstance(value, str) else value for key, value in _options(experiment).items()}
    shapes: dict[str, dict[str, Any]] = {
        "step": {"milestones": sorted({max(1, epochs // 2), max(1, 3 * epochs // 4)})},
        "exponential": {"decay": 0.01 ** (1 / epochs)},
        "cosine": {"epochs": epochs},
    }
    options = own if kind == experiment.training.schedule["kind"] else shapes[kind] | {"rate": own["rate"]}
    return build("schedule", SCHEDULES, kind, options)


def _options(experiment: Experiment) -> dict[str, Any]:
    return {key: value for key, value in experiment.training.schedule.items() if key != "kind"}
