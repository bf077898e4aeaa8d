"""The largest convergent rate is 2/L: find it by short trainings from the same weights, and read L off it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from excite.errors import DivergedError
from excite.lipschitz.estimate import LipschitzEstimate
from excite.lipschitz.protocol import Estimator, Needs, ShortTrainings

ANCHOR = 0.1  # the rates tried are this times powers of two and their roots, wherever the search starts
AS_FAR = 0.75  # of the best rate's way down from the initial loss: less is not convergence
HARDLY = 0.95  # of the initial loss: where the best run ends above this, the runs were too short to tell
BLOWN_UP = 100.0  # times the initial loss: no need to look on
FEWEST_STEPS = 40  # a shorter run tells nothing


@dataclass(frozen=True, kw_only=True)
class Edge(Estimator[ShortTrainings]):
    """At most `runs` short trainings for each of `seeds` draws of weights and data order; the largest L counts.

    All of a draw together cost at most `budget` whole trainings; `steps` fixes their length instead.
    """

    title: ClassVar[str] = "edge (largest convergent rate)"
    about: ClassVar[str] = "2 over the largest rate at which short trainings converge."
    needs: ClassVar[Needs] = "short trainings"

    budget: float = 0.15
    runs: int = 10
    steps: int | None = None
    ratio: float = 1.25
    seeds: int = 1

    def brief_steps(self, whole: int) -> int:
        """The length of one short training, where a whole one takes `whole` steps."""
        return self.steps or max(math.ceil(self.budget * whole / self.runs), FEWEST_STEPS)

    def most_steps(self, whole: int) -> int:
        return self.seeds * self.runs * self.brief_steps(whole)

    def __call__(self, evidence: ShortTrainings) -> LipschitzEstimate:
        steps = self.brief_steps(evidence.whole)

        def losses(draw: int) -> Callable[[float], Iterable[float]]:
            return lambda rate: evidence.losses_at(rate, draw, steps)

        return LipschitzEstimate.most_careful(
            [
                find_edge(losses(draw), steps=steps, start=evidence.first_rate, ratio=self.ratio, max_runs=self.runs)
                for draw in range(self.seeds)
            ]
        )


@dataclass(frozen=True)
class BriefRun:
    """A short training at one rate: its first loss, and the mean over its last quarter (infinite if it jumped)."""

    rate: float
    initial: float
    final: float


def find_edge(
    losses_at: Callable[[float], Iterable[float]],
    *,
    steps: int,
    start: float = 0.1,
    ratio: float = 1.25,
    max_runs: int = 12,
) -> LipschitzEstimate:
    """L = 2/η_max (the paper's Remark 3), with η_max bracketed to within `ratio` by short trainings.

    η_max is the largest rate that was seen to converge, so that L errs on the large side, as the theorem wants it.
    The rates tried lie on one ladder, 0.1 · 2^(k/n) with the smallest n whose rungs are at most `ratio` apart; it is
    searched by factors of 4 from the rung nearest to `start`, up until a rate does not converge and down until a
    smaller one does no better, and then bisected. So every start finds the same L where the loss has one best rate
    and worsens steadily away from it.

    A rate **converges** when (1) the loss over the last quarter of its run has come at least 3/4 as far down from the
    initial loss as that of the best rate tried, and (2) no batch cost more than the initial loss again once the loss
    had halved. The first holds networks with batch-norm to account, which hardly ever blow up but stop improving; the
    second plain networks, which learn and then jump out of the valley, a jump that a longer run may not survive. The
    interval is the bracket; L is identified when the bracket closed and the best run's loss fell by 5% at least. At
    most `max_runs` trainings are made, and a run that has jumped is not trained on.

    With momentum, η_max is the edge of that optimizer: on a quadratic 2(1 + β)/L for heavy-ball β. L = 2/η_max is then
    the constant that gives the right rates for it, not the largest curvature.

    Args:
        losses_at: trains for `steps` steps at the given rate, always from the same weights and in the same data order,
            and yields the losses; it need not be exhausted.
        steps: the length of one short training.
        start: where to look first, for instance the baseline's rate; it decides the number of runs.

    >>> def losses_at(rate, curvature=4.0, steps=100):  # gradient descent on ½ · 4 · θ²
    ...     theta = 1.0
    ...     for _ in range(steps):
    ...         yield 0.5 * curvature * theta**2
    ...         theta -= rate * curvature * theta
    >>> estimate = find_edge(losses_at, steps=100, ratio=1.01)
    >>> round(estimate.constant, 1)
    4.0
    """
    rungs = math.ceil(math.log(2) / math.log(ratio))  # per doubling
    leap = 2 * rungs
    runs: dict[int, BriefRun] = {}
    low = high = None
    rung = leap * round(math.log(start / ANCHOR, 4))
    while len(runs) < max_runs:
        runs[rung] = _brief_run(losses_at, ANCHOR * 2 ** (rung / rungs), steps)
        low, high = _bracket(runs)
        best = min(runs, key=lambda rung: runs[rung].final)
        if low is None or (best == min(runs) and len(runs) > 1):  # the best rate is needed to judge the others by
            rung = min(runs) - leap
        elif high is None:
            rung = max(runs) + leap
        elif high - low > 1:
            rung = (low + high) // 2
        else:
            break
    tried = [[run.rate, run.final] for _, run in sorted(runs.items())]
    if low is None:
        raise DivergedError(
            f"At none of the rates {', '.join(f'{rate:.3g}' for rate, _ in tried)} did the loss fall within {steps} "
            "steps. Start from a smaller rate, or make the short runs longer."
        )
    largest = runs[low].rate
    smallest = None if high is None else runs[high].rate
    details = {"steps": steps, "runs": tried, "largest_convergent": largest, "smallest_divergent": smallest}
    if high is None or smallest is None:
        return LipschitzEstimate(
            constant=2 / largest,
            interval=(0.0, 2 / largest),
            method="edge",
            identified=False,
            basis=f"every rate up to {largest:.3g} converged, so this is only an upper bound",
            details=details,
        )
    learned = min(run.final / run.initial for run in runs.values()) <= HARDLY
    basis = f"{len(runs)} runs of {steps} steps converged at {largest:.3g} and not at {smallest:.3g}"
    return LipschitzEstimate(
        constant=2 / largest,
        interval=(2 / smallest, 2 / largest),
        method="edge",
        identified=learned and high - low == 1,
        basis=basis if learned else basis + ", but all of them hardly learned: make the short runs longer",
        details=details,
    )


def _brief_run(losses_at: Callable[[float], Iterable[float]], rate: float, steps: int) -> BriefRun:
    losses: list[float] = []
    halved = False
    for loss in losses_at(rate):
        losses.append(loss)
        initial = losses[0]
        if not loss < BLOWN_UP * initial or (halved and loss > initial):
            return BriefRun(rate, initial, math.inf)
        halved = halved or _recent(losses, steps // 20) < initial / 2
    return BriefRun(rate, losses[0], _recent(losses, steps // 4))


def _recent(losses: list[float], length: int) -> float:
    recent = losses[-max(length, 1) :]
    return sum(recent) / len(recent)


def _bracket(runs: dict[int, BriefRun]) -> tuple[int | None, int | None]:
    """The rungs of the largest convergent rate and of the smallest one above it that is not."""
    best = min(run.final for run in runs.values())
    convergent = [rung for rung, run in runs.items() if 0 < run.initial - best <= (run.initial - run.final) / AS_FAR]
    if not convergent:
        return None, None
    low = max(convergent)
    return low, min((rung for rung in runs if rung > low), default=None)
