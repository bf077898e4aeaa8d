"""Can an estimate of L be trusted? Compare it with the trainings of its run and with the L of short trainings."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from excite.lipschitz import ESTIMATORS, LipschitzEstimate
from excite.runs.arms import OWN, in_order
from excite.runs.experiment import options_of
from excite.runs.folder import ArmFolder, RunFolder

ROUNDING = 1e-9
SIGNIFICANCE = 0.05
EDGE = 2.0  # the largest multiple of 1/L at which trainings should converge


@dataclass(frozen=True)
class Trust:
    """Whether to trust an estimate of L, and the reason."""

    trusted: bool
    reason: str

    def __str__(self) -> str:
        return f"{'yes' if self.trusted else 'no'}: {self.reason}"


def trust(estimate: LipschitzEstimate, arms: Iterable[ArmFolder], measured: LipschitzEstimate | None = None) -> Trust:
    """Trust an identified estimate unless a training in `arms`, or the L of short trainings, contradicts it."""
    if reason := _objection(estimate, arms, measured):
        return Trust(False, reason)
    if estimate.method == "stated":
        return Trust(False, "stated, not measured")
    return Trust(estimate.identified, "identified" if estimate.identified else "not identified by the data")


def trust_in(run: RunFolder, estimate: LipschitzEstimate) -> Trust:
    """Whether to trust an estimate, given everything that is known about the run."""
    return trust(estimate, run.arms, _measured(run))


def _objection(
    estimate: LipschitzEstimate, arms: Iterable[ArmFolder], measured: LipschitzEstimate | None
) -> str | None:
    """The evidence against an estimate, if there is any.

    A training that diverged at a safe rate contradicts the estimate, unless another one converged at a higher rate.
    Rates up to 2/L are safe if L is an upper bound; otherwise rates up to 1/L, and rates below the interval of 2/L. A
    training that converged above the interval of 2/L contradicts it, too. An L whose interval does not overlap that of
    `measured`, which comes from short trainings, is also in doubt. Failures of single trainings at 2/L are judged over
    all seeds by `doubted_together`. Controls do not count: their batch size may differ from the one of L.
    """
    trained = [arm for arm in arms if not arm.arm.control]
    edge = estimate.learning_rate(2)
    bound = edge if estimate.convergence else edge / 2
    safe = max(bound * (1 + ROUNDING), 2 / estimate.interval[1] * (1 - ROUNDING))
    converged = max((arm.rate for arm in trained if not _failed(arm)), default=0.0)
    diverged = [arm.rate for arm in trained if arm.problem and converged < arm.rate <= safe]
    if diverged:
        return f"training diverged at {min(diverged):.3g}, so 2/L = {edge:.3g} seems too high"
    highest = 2 / estimate.interval[0] if estimate.interval[0] > 0 else math.inf
    if converged > highest * (1 + ROUNDING):
        return f"training converged at {converged:.3g}, so 2/L = {edge:.3g} seems too low"
    if measured and not estimate.overlaps(measured):
        low, high = measured.interval
        limits = f"between {2 / high:.3g} and {2 / low:.3g}" if low > 0 else f"above {2 / high:.3g}"
        return f"2/L = {edge:.3g}, but short trainings stop converging {limits}"
    return None


def _failed(arm: ArmFolder) -> bool:
    return bool(arm.problem or (arm.evaluation and arm.evaluation.learned_nothing))


def L_by(estimator: str) -> str:  # noqa: N802
    """How a sentence names the L of an estimator."""
    return f"L by {estimator}" if estimator else "L"


def used_estimates(run: RunFolder) -> dict[str, LipschitzEstimate]:
    """The experiment's own L and every other L that an arm's rate came from, by name."""
    names = dict.fromkeys([OWN, *(arm.arm.estimator or OWN for arm in run.arms)])
    stored = {name: run.estimates[name].estimate for name in names if name in run.estimates}
    return {L_by(name): estimate for name, estimate in stored.items() if estimate}


def doubted(run: RunFolder) -> dict[str, str]:
    """For each L in use that the run's trainings contradict: the contradiction."""
    measured = _measured(run)
    objections = {name: _objection(one, run.arms, measured) for name, one in used_estimates(run).items()}
    return {name: reason for name, reason in objections.items() if reason}


def doubted_together(runs: Sequence[RunFolder]) -> dict[str, str]:
    """For each L: whether significantly more trainings at up to 2/L failed, over all seeds, than it allows.

    If L is an upper bound, 5% of trainings at 2/L may fail. Otherwise 2/L is the middle of an interval, and half may.
    """
    doubts = {}
    at_multiples: dict[str, list[tuple[ArmFolder, LipschitzEstimate | None]]] = {}
    for run in runs:
        for arm in run.arms:
            stored = run.estimates.get(arm.arm.estimator or OWN)
            if stored and arm.arm.multiple and arm.arm.multiple <= EDGE:
                at_multiples.setdefault(arm.name, []).append((arm, stored.estimate))
    for trained in at_multiples.values():
        is_bound = all(estimate and estimate.convergence for _, estimate in trained)
        chance, expected = (0.05, "at least 95%") if is_bound else (0.5, "at least half")
        failures = sum(_failed(arm) for arm, _ in trained)
        if failures and _tail(failures, len(trained), chance) <= SIGNIFICANCE:
            arm = trained[0][0]
            reason = f"{failures} of {len(trained)} trainings at {arm.short_title} failed; {expected} should converge"
            doubts[L_by(arm.arm.estimator or OWN)] = reason
    return doubts


def _tail(failures: int, trials: int, chance: float) -> float:
    """The binomial probability of at least this many failures.

    >>> _tail(5, 5, 0.5)
    0.03125
    """
    return sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(failures, trials + 1))


def options_of_estimate(run: RunFolder, name: str) -> Mapping[str, Any]:
    """The estimator's options when it ran; the experiment may have got this preset later."""
    return run.estimates[name].options or options_of(run.experiment, name)


def method_of(run: RunFolder, name: str = OWN) -> str:
    """The key in `ESTIMATORS` of the method behind an estimate, which may describe itself differently."""
    return str(options_of_estimate(run, name)["method"])


def by_short_trainings(run: RunFolder) -> LipschitzEstimate | None:
    """The run's own L, if it comes from short trainings."""
    estimator = ESTIMATORS.get(method_of(run)) if run.estimate else None
    return run.estimate if estimator and estimator.needs == "short trainings" else None


def _measured(run: RunFolder) -> LipschitzEstimate | None:
    """The L of short trainings, to compare others with: if it is identified or a bound, and not contradicted."""
    estimate = by_short_trainings(run)
    if estimate is None or _objection(estimate, run.arms, None):
        return None
    return estimate if estimate.identified or estimate.interval[0] == 0 else None


def unmet_premises(runs: Sequence[RunFolder]) -> list[str]:
    """The arms at a multiple of 1/L where the theorem does not apply, because recorded slopes exceed 1/η.

    The theorem requires η ≤ 1/L for the smoothness L of the loss, which the slopes measure. The L of short trainings is
    a different one: 2 over the largest rate that trains reliably.
    """
    found: dict[str, str] = {}
    for arm in (arm for run in runs for arm in run.arms):
        slope = arm.certified.largest_slope if arm.certified else None
        if arm.arm.multiple and slope is not None and slope > 1 / arm.rate and arm.name not in found:
            found[arm.name] = (
                f"The theorem does not apply at {arm.short_title}: it requires slopes of the gradient of at most "
                f"1/η = {1 / arm.rate:.3g}, but recorded slopes reach {slope:.3g}."
            )
    return [found[name] for name in in_order(set(found))]
