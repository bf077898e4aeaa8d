"""Was a training persistently excited: the theorem's ingredients, epoch by epoch."""

from dataclasses import asdict
from typing import Any

from excite.excitation import certify
from excite.lipschitz import LipschitzEstimate
from excite.registry import named_options
from excite.report.tables.formats import prose, text_table
from excite.trace import Trace

ROUNDING = 1e-9
COLUMNS = ["epoch", "cos(step, rest)", "acute", "‖∇l‖/‖θ−θ*‖", "1/η", "below", "η·L", "rates"]


@named_options
def excitation_facts(trace: Trace, estimate: LipschitzEstimate) -> dict[str, Any]:
    """Per recorded epoch but the last (θ*): Assumption 2, the proof's inequality, η against 1/L, contraction rates."""
    path = certify(trace, estimate)
    angles = path.angles
    products = trace.learning_rates[1:-1] * estimate.constant  # of the steps; those noted where they end
    epochs = [
        {
            "epoch": number + 1,
            "cosine": float(angles.cosines[number]),
            "acute": bool(angles.holds[number]),
            "slope": float(path.slopes[number]),
            "inverse_rate": float(path.inverse_rates[number]),
            "inequality_holds": bool(path.satisfied[number]),
            "rate_times_L": float(products[number]),
            "contraction_rates": list(span.rates) if span.holds else None,
        }
        for number, span in enumerate(path.spans)
    ]
    return {
        "epochs": epochs,
        "acute_fraction": angles.fraction,
        "largest_slope": path.largest_slope,
        "at_most_1/L": int((products <= 1 + ROUNDING).sum()),
        "at_most_2/L": int((products <= 2 + ROUNDING).sum()),
        "decay_exponent": path.step_sizes.exponent if path.step_sizes else None,
        "assumption_1": None if path.smoothness is None else asdict(path.smoothness),
        "excitation": None if path.excitation is None else asdict(path.excitation),  # Definition 1: μ₁, μ₂, T₀
        "conclusions": [str(path)],
    }


@named_options
def excitation_table(trace: Trace, estimate: LipschitzEstimate) -> str:
    facts = excitation_facts(trace, estimate)
    total = len(facts["epochs"])
    rows = [
        [
            str(epoch["epoch"]),
            f"{epoch['cosine']:+.3f}",
            "yes" if epoch["acute"] else "no",
            f"{epoch['slope']:.3g}",
            f"{epoch['inverse_rate']:.3g}",
            "yes" if epoch["inequality_holds"] else "no",
            f"{epoch['rate_times_L']:.3g}",
            ", ".join(f"{rate:.3g}" for rate in epoch["contraction_rates"] or ()) or "none",
        ]
        for epoch in facts["epochs"]
    ]
    notes = [
        *facts["conclusions"],
        f"The rate was at most 1/L in {facts['at_most_1/L']} and at most 2/L in {facts['at_most_2/L']} of {total} "
        f"epochs (L = {estimate.constant:.3g} by {estimate.method}).",
        *_unmet_premise(facts),
        "The theorem is about every step of full-batch gradient descent; these are the steps between epochs of SGD.",
    ]
    return "\n".join([text_table(COLUMNS, rows), "", *map(prose, notes)])


def _unmet_premise(facts: dict[str, Any]) -> list[str]:
    """The theorem requires a rate of at most 1 over the smoothness of the loss, which is no less than any slope."""
    smoothness, least = facts["assumption_1"], min(epoch["inverse_rate"] for epoch in facts["epochs"])
    if smoothness is None or smoothness["largest"] <= least:
        return []
    return [
        f"The theorem's premise is not met at this rate: recorded slopes of the gradient reach "
        f"{smoothness['largest']:.3g}, above 1/η = {least:.3g}."
    ]
