"""Tables about L and the theorem: every estimate of L side by side, and the theorem's conditions epoch by epoch."""

import itertools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from excite.excitation import certify
from excite.lipschitz import LipschitzEstimate
from excite.report.formats import prose, text_table
from excite.report.trust import trust, trust_in
from excite.runs.folder import RunFolder
from excite.trace import Trace

ROUNDING = 1e-9
ESTIMATES = ["method", "L", "interval", "1/L", "2/L", "p", "trusted?"]
EPOCHS = ["epoch", "cos(step, rest)", "acute", "‖∇l‖/‖θ−θ*‖", "1/η", "below", "η·L", "contraction rates"]


def estimates_table(estimates: Mapping[str, LipschitzEstimate | str], run: RunFolder | None = None) -> str:
    """One row per method, then the data behind each; a method without an estimate states the reason.

    An estimate that the trainings of `run` contradict is not trusted.
    """
    found = {name: estimate for name, estimate in estimates.items() if isinstance(estimate, LipschitzEstimate)}
    trusts = {name: trust_in(run, one) if run else trust(one, ()) for name, one in found.items()}
    rows = [
        [
            name,
            f"{one.constant:.4g}",
            "{:.3g} to {:.3g}".format(*one.interval),
            f"{one.learning_rate():.3g}",
            f"{one.learning_rate(2):.3g}",
            "–" if one.p_value is None else f"{one.p_value:.2g}",
            str(trusts[name]),
        ]
        for name, one in found.items()
    ]
    notes = [
        f"{name}: {one.basis if isinstance(one, LipschitzEstimate) else one}".removesuffix(".") + "."
        for name, one in estimates.items()
    ]
    notes += _disagreement({name: one for name, one in found.items() if trusts[name].trusted})
    return "\n".join([text_table(ESTIMATES, rows), "", *map(prose, notes)])


def _disagreement(trusted: Mapping[str, LipschitzEstimate]) -> list[str]:
    """A note if two trusted estimates disagree: neither number lies in the other's interval."""
    apart = [pair for pair in itertools.combinations(trusted, 2) if not _agree(*(trusted[name] for name in pair))]
    if not apart:
        return []
    names = ", ".join(dict.fromkeys(itertools.chain.from_iterable(apart)))
    edge = any(one.method == "edge" for one in trusted.values())
    advice = " Prefer edge, which tries rates." if edge else ""
    return [f"{names} disagree.{advice} Estimates from a trace depend on the rate of the baseline."]


def _agree(one: LipschitzEstimate, other: LipschitzEstimate) -> bool:
    return any(a.interval[0] <= b.constant <= a.interval[1] for a, b in ((one, other), (other, one)))


def excitation_facts(trace: Trace, estimate: LipschitzEstimate) -> dict[str, Any]:
    """For every recorded epoch except the last, which stands in for θ*: the theorem's conditions and their results."""
    path = certify(trace, estimate)
    angles = path.angles
    products = trace.learning_rates[1:-1] * estimate.constant  # the rate of a step is recorded where the step ends
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


def excitation_table(trace: Trace, estimate: LipschitzEstimate) -> str:
    """`excitation_facts` as a table with its conclusions."""
    facts = excitation_facts(trace, estimate)
    rows = [
        [
            str(epoch["epoch"]),
            f"{epoch['cosine']:+.3f}",
            "yes" if epoch["acute"] else "no",
            f"{epoch['slope']:.3g}",
            f"{epoch['inverse_rate']:.3g}",
            "yes" if epoch["inequality_holds"] else "no",
            f"{epoch['rate_times_L']:.3g}",
            ", ".join(f"{rate:.3g}" for rate in epoch["contraction_rates"] or ()) or "–",
        ]
        for epoch in facts["epochs"]
    ]
    notes = [
        *facts["conclusions"],
        f"The rate was at most 1/L in {facts['at_most_1/L']} and at most 2/L in {facts['at_most_2/L']} of "
        f"{len(facts['epochs'])} epochs (L = {estimate.constant:.3g} by {estimate.method}).",
    ]
    smoothness, limit = facts["assumption_1"], min(epoch["inverse_rate"] for epoch in facts["epochs"])
    if smoothness and smoothness["largest"] > limit:
        notes.append(
            "The theorem does not apply at this rate: it requires slopes of the gradient of at most "
            f"1/η = {limit:.3g}, but recorded slopes reach {smoothness['largest']:.3g}."
        )
    notes.append("The theorem is about the steps of full-batch gradient descent; these are steps between SGD epochs.")
    return "\n".join([text_table(EPOCHS, rows), "", *map(prose, notes)])
