"""The largest convergent rate is 2/L: find the rate that half of all trainings survive, and read L off it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from excite.errors import DivergedError, InputError
from excite.lipschitz.brief_run import BriefRun, Reference, ended_well, train_briefly
from excite.lipschitz.dose_response import DoseResponse
from excite.lipschitz.optimizers import described
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Needs, ShortTrainings
from excite.quantities import check_number, check_whole
from excite.registry import named_options, with_named_options

if TYPE_CHECKING:
    from torch.optim import Optimizer

RUNS = 8  # that a budget pays for; those that end early pay for some more
BUDGET = 10  # times the length of a run, where only that is given
FEWEST_STEPS = 20  # a shorter run tells nothing
TRANSFER = 0.2  # e-folds, a standard deviation: by so much the threshold of whole trainings differs from short ones'
NARROWEST = 1.2  # a narrower interval would take more runs than it is worth beside that
IDENTIFIED = 2.0  # an interval of the short runs wider than this pins nothing down
LONGER = "make the short runs longer with steps (in an experiment lipschitz.steps)"
MORE = "raise the budget (in an experiment lipschitz.budget)"
HARDLY = 0.05  # of the initial loss: where no run has come down this far, all rates may be beyond the edge
LEAP = 4.0  # downwards, where the smallest rate tried is the best one: there may be better ones to judge it by
CLEARLY = 1.02  # times as far down
LITTLE = 0.15  # of the initial loss: runs whose best has come no farther misjudge rates by factors
FEW, LITTLE_OF_FEW = 75, 0.25  # steps; the same for runs this short
PLENTY = 0.5  # of a loss that is never negative: whoever is so far down is good enough to judge others by


@with_named_options
@dataclass(frozen=True, kw_only=True)
class Edge(Estimator[ShortTrainings]):
    """All short trainings together cost at most `budget` whole ones, or ten times `steps`, the length of one of them.

    `steps` is for trainings so short that a share of them would show nothing.
    """

    title: ClassVar[str] = "edge (largest convergent rate)"
    about: ClassVar[str] = "2 over the rate that half of all trainings survive, from short ones."
    needs: ClassVar[Needs] = "short trainings"

    budget: float = 0.15
    steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.budget < float("inf"):
            raise InputError(f"budget={self.budget:g} leaves no step to train; pass more than 0, for instance 0.15.")
        if self.steps is not None and self.steps < 1:
            raise InputError(f"steps={self.steps} is no training; pass 1 or more, or leave it out.")

    def most_steps(self, whole: int) -> int:
        return BUDGET * self.steps if self.steps else round(self.budget * whole)

    def __call__(self, evidence: ShortTrainings) -> LipschitzEstimate:
        return find_edge(
            evidence.losses_at,
            budget=self.most_steps(evidence.whole),
            steps=self.steps,
            start=evidence.first_rate,
            optimizer=evidence.optimizer,
        )


@named_options
def find_edge(
    losses_at: Callable[[float, int], Iterable[float]],
    *,
    budget: int,
    steps: int | None = None,
    start: float = 0.1,
    width: float = 1.5,
    optimizer: "Optimizer | str" = "",
) -> LipschitzEstimate:
    """L = 2/η_max (the paper's Remark 3), with η_max the rate that half of all trainings survive.

    Near the edge it is luck whether a training survives, so P(it ends well | η) is taken as a logistic curve in log η,
    and short trainings, each with other initial weights and another data order, say where it falls:

    1. train briefly at the rate that tells most about the curve, given the runs so far (the first one: `start`);
    2. a run **ends well** when its loss has come at least 2/3 as far down as the best runs', so that a batch-norm
       network, which hardly ever blows up but stops improving, is judged by the same rule as one that blows up;
    3. stop when the threshold of short runs is known within a factor `width` (95%), or the budget is spent.

    L's interval covers the luck of the seeds and of the search, and ±20% (a standard deviation) for what a short run
    cannot know about a whole training; docs/estimators.md has the evidence. Beside L, `details["careful_rate"]` is the
    rate that 95% of trainings survive even if the edge lies at the lower end of its interval. L is identified when the
    threshold of short runs is known within a factor 2, rates on both sides of it were seen, and the best run's loss
    fell by 15%, or by 25% where runs have fewer than 75 steps.

    With momentum, η_max is the edge of that optimizer: on a quadratic 2(1 + β)/λ for heavy-ball β. L = 2/η_max is then
    the constant that gives the right rates for it, not the largest curvature. `largest_stable_rate` has the others.

    Args:
        losses_at: `losses_at(rate, draw)` trains at a constant rate and yields the loss of each step, for as long as
            it is asked. Another draw (0, 1, 2, …) means other initial weights and another data order.
        budget: how many steps all runs together may take; 15% of a training is a good choice.
        steps: the length of one run; by default the budget pays for 8 of them, and those that end early for more.
            The plateau that some losses begin with must be left behind by then.
        start: where to look first, for instance the baseline's rate.
        width: narrow enough for the threshold of short runs, at least 1.2.
        optimizer: the one that `losses_at` uses, or its name; the estimate says that it holds for this one.

    Returns:
        The estimate. In `details`: `rates`, `ended_well`, `initial`, `final` and `taken` (steps) of every run, `curve`
        as pairs of rate and P(ends well), `careful_rate`, `threshold`, `steps`, `spent`, `budget`, `stopped`
        ("narrow" or "budget") and `optimizer`.

    >>> def losses_at(rate, draw, curvature=4.0):  # gradient descent on ½ · 4 · θ², from ±1
    ...     theta = (-1.0) ** draw
    ...     while True:
    ...         yield 0.5 * curvature * theta**2
    ...         theta -= rate * curvature * theta
    >>> estimate = find_edge(losses_at, budget=1000)
    >>> estimate.interval[0] < 4.0 < estimate.interval[1], estimate.details["stopped"]
    (True, 'narrow')
    """
    steps = _check(budget, steps, start, width)
    runs: list[BriefRun] = []
    curve, rate, stopped = DoseResponse(start), start, "budget"
    while _spent(runs) + steps <= budget:
        runs.append(train_briefly(losses_at(rate, len(runs)), rate=rate, steps=steps, so_far=runs))
        verdicts = ended_well(runs)
        curve = DoseResponse(start, [run.rate for run in runs], verdicts)
        low, high = curve.interval()
        rate = _next_rate(runs, curve)
        if high <= low * width and any(verdicts):
            stopped = "narrow"
            break
    return _conclude(runs, curve, budget=budget, stopped=stopped, optimizer=described(optimizer))


def _check(budget: int, steps: int | None, start: float, width: float) -> int:
    check_number("start", start)
    check_number("width", width)
    check_whole("budget", budget)
    if steps is not None:
        check_whole("steps", steps)
    if not (math.isfinite(start) and start > 0):
        raise InputError(f"start={start} is no rate to begin with; pass a positive one, for instance start=0.1.")
    if not width >= NARROWEST:
        raise InputError(f"width={width} is too narrow; an interval is a factor wide: pass {NARROWEST} or more.")
    if steps is not None and steps < 1:
        raise InputError(f"steps={steps} is no training; pass 1 or more, or leave it out.")
    steps = steps or max(budget // RUNS, FEWEST_STEPS)
    if steps > budget:
        raise InputError(
            f"A budget of {budget} steps does not pay for a single run of {steps}. "
            f"Raise it, to {RUNS * steps} for instance, or make the runs shorter."
        )
    return steps


def _spent(runs: Sequence[BriefRun]) -> int:
    return sum(len(run.losses) for run in runs)


def _of_whole_trainings(curve: DoseResponse) -> tuple[float, float]:
    """The threshold of whole trainings lies in here with 95%: the luck of the short ones, and what they cannot see."""
    middle, beyond = math.log(curve.threshold()), 1.96 * TRANSFER
    low, high = (math.log(rate) for rate in curve.interval())
    return math.exp(middle - math.hypot(middle - low, beyond)), math.exp(middle + math.hypot(high - middle, beyond))


def _next_rate(runs: Sequence[BriefRun], curve: DoseResponse) -> float:
    lowest = min(runs, key=lambda run: run.rate)
    if min(lowest.losses) >= 0 and lowest.way_down >= PLENTY * lowest.initial:
        return curve.most_informative_rate()
    others = max((_farthest(run) for run in runs if run.rate > lowest.rate), default=math.inf)
    looked_below = lowest.rate < curve.start
    if others < HARDLY * abs(lowest.initial) > lowest.way_down and lowest.rate > curve.start / LEAP**2:
        return lowest.rate / LEAP  # nothing learned so far, at larger rates neither: all of them may be beyond the edge
    if lowest.way_down > others * (CLEARLY if looked_below else 1 / CLEARLY) > 0 or others < 0 < lowest.way_down:
        return lowest.rate / LEAP
    return curve.most_informative_rate()


def _farthest(run: BriefRun) -> float:
    return math.inf if run.arrived else run.way_down  # where it would have ended nobody knows


def _conclude(
    runs: Sequence[BriefRun], curve: DoseResponse, *, budget: int, stopped: str, optimizer: str
) -> LipschitzEstimate:
    steps, reference = runs[0].steps, Reference.among(runs)
    if reference is None:
        tried = ", ".join(f"{run.rate:.3g}" for run in sorted(runs, key=lambda run: run.rate))
        raise DivergedError(
            f"At none of the rates {tried} did the loss fall within {steps} steps. "
            f"Start from a smaller rate, or {LONGER}."
        )
    threshold, (low, high) = curve.threshold(), _of_whole_trainings(curve)
    careful = curve.careful() * low / threshold  # also if the edge lies at the lower end of its interval
    details = _details(runs, curve) | {
        "threshold": threshold,
        "careful_rate": careful,
        "steps": steps,
        "spent": _spent(runs),
        "budget": budget,
        "stopped": stopped,
        "optimizer": optimizer,
    }
    why = "they agreed well enough" if stopped == "narrow" else "the budget was spent"
    basis = f"{len(runs)} runs of {steps} steps, {_spent(runs):,} of {budget:,} steps in all, until {why}"
    if optimizer:
        basis = f"with {optimizer}, {basis}"
    if all(curve.survived):
        largest = max(curve.rates)
        return LipschitzEstimate(
            constant=2 / largest,
            interval=(0.0, 2 / largest),
            method="edge",
            identified=False,
            basis=f"{basis}; every rate up to {largest:.3g} converged, so this is only an upper bound",
            details=details,
        )
    doubts = []
    initial = abs(reference.best.initial)
    if reference.way_down < initial * (LITTLE_OF_FEW if steps < FEW else LITTLE):
        doubts.append(f"all of them hardly learned, at best {reference.way_down / initial:.0%} of the loss: {LONGER}")
    lowest, highest = curve.interval()
    if highest > lowest * IDENTIFIED:
        doubts.append(f"they are too few to tell: {MORE}")
    return LipschitzEstimate(
        constant=2 / threshold,
        interval=(2 / high, 2 / low),
        method="edge",
        identified=not doubts,
        basis=f"{basis}; {'; '.join(doubts) or f'95% of trainings survive {careful:.3g}'}",
        details=details,
    )


def _details(runs: Sequence[BriefRun], curve: DoseResponse) -> dict[str, Any]:
    rates = list(curve.rates)
    shown = np.geomspace(min(rates) / 2, max(rates) * 2, 61).tolist()
    return {
        "rates": rates,
        "ended_well": list(curve.survived),
        "initial": [run.initial for run in runs],
        "final": [run.final if math.isfinite(run.final) else None for run in runs],
        "taken": [len(run.losses) for run in runs],
        "curve": [list(pair) for pair in zip(shown, curve.survival(shown), strict=True)],
    }
