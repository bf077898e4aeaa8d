"""Figures as SVG text: readable in print, in the dark, and by the colour-blind."""

import io
from typing import TYPE_CHECKING

from excite.evaluation import Accuracy
from excite.experiments.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers say the same in black and white.
STYLES = {"baseline": ("#0072B2", "o"), "poe": ("#D55E00", "s"), "largest": ("#009E73", "^")}
GREY = "#7f7f7f"  # has contrast on white and on black


def learning_curves(results: Results) -> str:
    """Training loss and test accuracy against epochs, a line per arm."""
    figure = _new_figure(width=9)
    loss, accuracy = figure.subplots(1, 2)
    for arm in results.arms:
        colour, marker = STYLES[arm.name]
        epochs = [metrics.epoch for metrics in arm.epochs]
        style = {"color": colour, "marker": marker, "markersize": 4, "label": f"{arm.title} (η¹ = {arm.rate:.3g})"}
        loss.plot(epochs, [metrics.loss for metrics in arm.epochs], **style)
        accuracy.plot(epochs, [100 * metrics.extra["test_accuracy"] for metrics in arm.epochs], **style)
    for axes in (loss, accuracy):
        axes.xaxis.get_major_locator().set_params(integer=True)
    loss.set_yscale("log")
    _label(loss, "epoch", "training loss (nats, log scale)")
    _label(accuracy, "epoch", "clean test accuracy (%)")
    loss.legend(frameon=False, labelcolor=GREY, fontsize=8)
    return _svg(figure)


def accuracies(results: Results) -> str:
    """Clean and robust accuracy of each arm, with 95% intervals."""
    figure = _new_figure(width=9)
    axes = figure.subplots()
    names = ["clean", *results.experiment.attacks]
    for shift, arm in enumerate(results.arms):
        if arm.evaluation:
            colour, marker = STYLES[arm.name]
            values: list[Accuracy] = [arm.evaluation.clean, *arm.evaluation.robust.values()]
            axes.errorbar(
                [number + 0.15 * (shift - 1) for number in range(len(names))],
                [100 * value.value for value in values],
                yerr=[
                    [100 * (value.value - value.interval[0]) for value in values],
                    [100 * (value.interval[1] - value.value) for value in values],
                ],
                fmt=marker,
                color=colour,
                capsize=3,
                label=arm.title,
            )
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(-3, 103)
    _label(axes, "", "accuracy (%)")
    axes.legend(frameon=False, labelcolor=GREY, fontsize=8)
    return _svg(figure)


def _new_figure(width: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, 3.4), layout="constrained")


def _label(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x, color=GREY)
    axes.set_ylabel(y, color=GREY)
    axes.tick_params(colors=GREY)
    axes.grid(alpha=0.25, color=GREY)
    axes.patch.set_alpha(0)
    for spine in axes.spines.values():
        spine.set_color(GREY)


def _svg(figure: "Figure") -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
