"""Estimates of L: whether each can be trusted, and tables of them and of the theorem's conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from excite.lipschitz import LipschitzEstimate
from excite.report.formats import prose, text_table
from excite.runs.arms import OWN
from excite.runs.folder import RunFolder

if TYPE_CHECKING:
    from excite.trace import Trace

ROUNDING = 1e-9
ESTIMATES = ["method", "L", "interval", "1/L", "2/L", "p", "trusted?"]
EPOCHS = ["epoch", "cos(step, rest)", "acute", "‖∇l‖/‖θ−θ*‖", "1/η", "below", "η·L", "contraction rates"]
UNMET = "it requires slopes of the gradient of at most 1/η = {:.4g}, but recorded slopes reach {:.4g}."


class Trust(NamedTuple):
    """Whether to trust an estimate of L, and the reason."""

    trusted: bool
    reason: str

    def __str__(self) -> str:
        return f"{'yes' if self.trusted else 'no'}: {self.reason}"


def trust(run: RunFolder, estimate: LipschitzEstimate) -> Trust:
    """Trust an identified or stated L unless a training of the run contradicts it."""
    if reason := _objection(run, estimate):
        return Trust(False, reason)
    if estimate.method == "stated":
        return Trust(True, "stated, and no training contradicts it")
    return Trust(estimate.identified, "identified" if estimate.identified else "not identified by the data")


def _objection(run: RunFolder, estimate: LipschitzEstimate) -> str | None:
    """The evidence against an estimate, if there is any.

    A training that diverged at a safe rate contradicts the estimate, unless another one converged at a higher rate.
    Rates up to 2/L are safe if L is an upper bound; otherwise rates up to 1/L, and rates below the interval of 2/L. A
    training that converged above the interval of 2/L contradicts it, too. Controls do not count: their batch size may
    differ from the one of L.
    """
    trained = [arm for arm in run.arms if not arm.arm.control]
    edge = estimate.learning_rate(2)
    bound = edge if estimate.convergence else edge / 2
    safe = max(bound * (1 + ROUNDING), 2 / estimate.interval[1] * (1 - ROUNDING))
    converged = max((arm.rate for arm in trained if not arm.failed), default=0.0)
    diverged = [arm.rate for arm in trained if arm.problem and converged < arm.rate <= safe]
    if diverged:
        return f"training diverged at {min(diverged):.3g}, so 2/L = {edge:.3g} seems too high"
    if converged * estimate.interval[0] > 2 * (1 + ROUNDING):
        return f"training converged at {converged:.3g}, so 2/L = {edge:.3g} seems too low"
    return None


def L_by(estimator: str) -> str:  # noqa: N802
    """How a sentence names the L of an estimator."""
    return f"L by {estimator}" if estimator else "L"


def used_estimates(run: RunFolder) -> dict[str, LipschitzEstimate]:
    """The experiment's own L and every other L that an arm's rate came from, by name."""
    estimators = {arm.name: arm.arm.estimator or OWN for arm in run.arms}
    used = {OWN: run.estimate} | {estimator: run.estimate_of(arm) for arm, estimator in estimators.items()}
    return {L_by(estimator): estimate for estimator, estimate in used.items() if estimate}


def doubted(runs: Sequence[RunFolder]) -> dict[str, str]:
    """For each L in use that trainings contradict, over all seeds of an experiment: the first contradiction."""
    used = [(run, name, estimate) for run in runs for name, estimate in used_estimates(run).items()]
    objections = [(name, reason) for run, name, estimate in used if (reason := _objection(run, estimate))]
    return dict(reversed(objections))


def beside(run: RunFolder) -> str:
    """The L of the experiment's other presets, which no arm need have used, in one sentence; "" if there is none."""
    others = []
    for name, stored in run.estimates.items():
        if name in run.experiment.estimators and name != run.experiment.own_name:
            estimate = stored.estimate
            note = "" if estimate is None or estimate.identified or estimate.method == "stated" else " (not identified)"
            others.append(f"{name} {estimate.constant:.4g}{note}" if estimate else f"{name}: none")
    return f"L by other estimators: {', '.join(others)}." if others else ""


def estimates_table(estimates: Mapping[str, LipschitzEstimate | str], run: RunFolder) -> str:
    """One row per method, then the data behind each; a method without an estimate states the reason."""
    made = {name: estimate for name, estimate in estimates.items() if isinstance(estimate, LipschitzEstimate)}
    rows = [
        [
            name,
            f"{estimate.constant:.4g}",
            "{:.3g} to {:.3g}".format(*estimate.interval),
            f"{estimate.learning_rate():.3g}",
            f"{estimate.learning_rate(2):.3g}",
            "–" if estimate.p_value is None else f"{estimate.p_value:.2g}",
            str(trust(run, estimate)),
        ]
        for name, estimate in made.items()
    ]
    reasons = dict(estimates) | {name: estimate.basis for name, estimate in made.items()}
    notes = [f"{name}: {reason}".removesuffix(".") + "." for name, reason in reasons.items()]
    return "\n".join([text_table(ESTIMATES, rows), "", *map(prose, notes)])


def excitation_facts(trace: "Trace", estimate: LipschitzEstimate) -> dict[str, Any]:
    """For every recorded epoch except the last, which stands in for θ*: the theorem's conditions and their results."""
    from excite.excitation import certify, expected_acuteness

    path = certify(trace, estimate)
    expected = expected_acuteness(trace) if trace.batch_statistics.size else None
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
        "decay_exponent": path.decay,
        "assumption_1": None if path.smoothness is None else asdict(path.smoothness),
        "excitation": None if path.excitation is None else asdict(path.excitation),  # Definition 1: μ₁, μ₂, T₀
        "in_expectation": expected and expected.to_json(),
        "conclusions": [str(path), *([] if expected is None else [str(expected)])],
    }


def excitation_table(trace: "Trace", estimate: LipschitzEstimate) -> str:
    """`excitation_facts` as a table with its conclusions."""
    from excite.excitation.in_expectation import HOW_TO_RECORD

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
        notes.append(f"The theorem does not apply at this rate: {UNMET.format(limit, smoothness['largest'])}")
    if (trace.steps[1:] - trace.steps[:-1]).max() > 1:
        notes.append("The theorem is about single steps of full-batch gradient descent; here a step is a whole epoch.")
        if facts["in_expectation"] is None:
            notes.append(f"Steps of SGD in expectation: {HOW_TO_RECORD}")
    return "\n".join([text_table(EPOCHS, rows), "", *map(prose, notes)])
