"""An estimate of L as a picture over the learning rate: 1/L, 2/L, the interval, and the runs they were read off."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from excite.lipschitz.protocol import LipschitzEstimate

WELL, ILL, CURVE = "#2a7f62", "#b5403a", "#6b6f76"


def plot_estimate(estimate: "LipschitzEstimate", axes: "Axes | None" = None) -> "Axes":
    """Draw on `axes`, by default new ones; nothing is shown or saved."""
    if axes is None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
    low, high = estimate.interval
    if low > 0:
        axes.axvspan(2 / high, 2 / low, color=CURVE, alpha=0.15, lw=0, label="2/L, its interval")
    for multiple, style in ((1, "--"), (2, "-")):
        axes.axvline(estimate.learning_rate(multiple), color="black", ls=style, lw=1, label=f"{multiple}/L")
    if "curve" in estimate.details:
        _draw_runs(axes, estimate.details)
    axes.set(xscale="log", xlabel="learning rate", title=f"L = {estimate.constant:.3g} by {estimate.method}")
    axes.legend(fontsize="small", frameon=False)
    return axes


def _draw_runs(axes: "Axes", details: dict[str, Any]) -> None:
    """Every short run at its rate, at 1 if it converged and at 0 if not, and the probability to converge."""
    rates, chances = zip(*details["curve"], strict=True)
    axes.plot(rates, chances, color=CURVE, lw=1.5, label="P(training converges)")
    verdicts = details["converged"] if "converged" in details else details["ended_well"]  # of earlier versions
    for well, colour, label in ((True, WELL, "converged"), (False, ILL, "did not")):
        own = [rate for rate, verdict in zip(details["rates"], verdicts, strict=True) if verdict is well]
        axes.plot(own, [float(well)] * len(own), "o", color=colour, ms=5, alpha=0.8, label=label)
    axes.set(ylabel="P(training converges)", ylim=(-0.08, 1.08))
