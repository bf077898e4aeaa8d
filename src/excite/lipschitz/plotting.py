"""Plot an estimate of L over the learning rate: 1/L, 2/L, the interval, and the short runs behind them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from excite.lipschitz.protocol import LipschitzEstimate

CONVERGED, FAILED, CURVE = "#2a7f62", "#b5403a", "#6b6f76"


def plot_estimate(estimate: "LipschitzEstimate", axes: "Axes | None" = None) -> "Axes":
    """Draw on `axes`, or on new axes; the figure is neither shown nor saved."""
    if axes is None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
    low, high = estimate.interval
    if low > 0:
        axes.axvspan(2 / high, 2 / low, color=CURVE, alpha=0.15, lw=0, label="interval of 2/L")
    for multiple, style in ((1, "--"), (2, "-")):
        axes.axvline(estimate.learning_rate(multiple), color="black", ls=style, lw=1, label=f"{multiple}/L")
    if "curve" in estimate.details:
        _draw_runs(axes, estimate.details)
    axes.set(xscale="log", xlabel="learning rate", title=f"L = {estimate.constant:.3g} by {estimate.method}")
    axes.legend(fontsize="small", frameon=False)
    return axes


def _draw_runs(axes: "Axes", details: dict[str, Any]) -> None:
    """Draw each short run at its rate, at 1 if it converged and at 0 if not, and the probability of convergence."""
    axes.plot(*zip(*details["curve"], strict=True), color=CURVE, lw=1.5, label="P(training converges)")
    verdicts = details["converged"] if "converged" in details else details["ended_well"]  # of earlier versions
    for converged, color, label in ((True, CONVERGED, "converged"), (False, FAILED, "did not converge")):
        rates = [rate for rate, verdict in zip(details["rates"], verdicts, strict=True) if verdict is converged]
        axes.plot(rates, [float(converged)] * len(rates), "o", color=color, ms=5, alpha=0.8, label=label)
    axes.set(ylabel="P(training converges)", ylim=(-0.08, 1.08))
