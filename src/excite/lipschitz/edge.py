"""The certified L is 2/η*: short runs bound η*, the largest rate at which 95% of whole trainings converge."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from excite.errors import DivergedError, InputError
from excite.lipschitz.brief_run import BriefRun, Yardstick, converged, train_briefly
from excite.lipschitz.dose_response import UNKNOWN, DoseResponse
from excite.lipschitz.optimizers import described, is_adaptive
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Needs, ShortTrainings
from excite.quantities import check_number, check_whole

if TYPE_CHECKING:
    from torch.optim import Optimizer

LossesAt = Callable[[float, int, int], Iterable[float]]

RELIABLE = 0.95  # the share of trainings that converge at η*
CERTAINTY = 0.95  # that 2/L is no more than η*
FIRST_LENGTH = 60  # steps of the first runs, if the limit allows: shorter ones end within the first oscillations
SHORTEST = 20  # steps; a run shorter than this is refused
FEWEST_IN_ALL = 5000  # steps that all runs together may take by default, if a training is shorter than that
USUALLY_LONGER = 8.0  # times: assumed length of a training over that of the runs, if `whole` is not given
IDENTIFIED = 2.0  # a factor: if the threshold of the runs is not known this well, L is not identified
NARROW = 1.5  # a factor: the search ends once the threshold is known this well
LONGER = 4  # times: how much longer runs become, because the threshold drifts with the length
WORTHWHILE = 1.5  # times: runs keep their length if they could become longer by less than this
LARGEST_PART = 4  # runs become at most a quarter of a training long for that
NEARBY = 0.5  # e-folds in which the threshold of longer runs is expected
LEARNED = 0.3  # of the initial loss: if no run has come this far down, the runs are too short, unless
LEVEL = 1.25  # times: it fell by less than this times as much as in shorter runs
FEWEST_RUNS = 8  # that the limit must still pay for when runs are made longer
LEAP = 4.0  # a factor: how far away to look for better rates
PLENTY = 0.5  # of the initial loss: a run that has come this far down is good enough to judge others by


@dataclass(frozen=True, kw_only=True)
class Edge(Estimator[ShortTrainings]):
    """The short runs cost `budget` trainings at first. If that does not identify L, they continue, up to `limit`.

    The default limit is one training, or 5,000 steps if a training is shorter. `steps` fixes the length of a run; the
    budget is then ten runs.
    """

    title: ClassVar[str] = "edge (largest convergent rate)"
    about: ClassVar[str] = (
        "2 over the largest rate at which 95% of trainings converge, from short runs; an upper bound."
    )
    needs: ClassVar[Needs] = "short trainings"

    budget: float = 0.15
    limit: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        for name, share in (("budget", self.budget), ("limit", self.limit)):
            if share is not None and not 0 < share < float("inf"):
                raise InputError(f"{name}={share:g} leaves no step to train; pass more than 0, for instance 0.15.")
        if self.steps is not None and self.steps < 1:
            raise InputError(f"steps={self.steps} is too few for a run; pass 1 or more, or leave it out.")

    def usual_steps(self, whole: int) -> int:
        """What the short runs take if that identifies L."""
        return 10 * self.steps if self.steps else round(self.budget * whole)

    def most_steps(self, whole: int) -> int:
        limit = max(whole, FEWEST_IN_ALL) if self.limit is None else round(self.limit * whole)
        return max(self.usual_steps(whole), limit)

    def __call__(self, evidence: ShortTrainings) -> LipschitzEstimate:
        return find_edge(
            evidence.losses_at,
            budget=self.usual_steps(evidence.whole),
            limit=self.most_steps(evidence.whole),
            whole=evidence.whole,
            steps=self.steps,
            start=evidence.first_rate,
            optimizer=evidence.optimizer,
            say=evidence.say,
        )


def find_edge(
    losses_at: LossesAt,
    *,
    budget: int,
    limit: int | None = None,
    whole: int | None = None,
    steps: int | None = None,
    start: float = 0.1,
    optimizer: "Optimizer | str" = "",
    say: Callable[[str], None] | None = None,
) -> LipschitzEstimate:
    """Bound L = 2/η*, where η* is the largest rate at which 95% of whole trainings converge.

    A training converges if its loss ends at least nine tenths as far down from its initial value as trainings at the
    best rate do. Short runs, each with new initial weights and a new data order, estimate how the probability to
    converge falls with the rate, as a logistic curve in log η:

    1. Train briefly at the rate that is most informative about the curve. The first run uses `start`.
    2. Judge all runs so far by the best of them (`excite.lipschitz.brief_run.converged`).
    3. Once the threshold is known within a factor 2, start again near it with runs 4 times as long, up to a quarter of
       a training: the threshold often drifts with the length of the runs.
    4. Stop when runs cannot become longer and the threshold is known within a factor 1.5, or when the budget is spent.
       The budget of an identified L is at least 5,000 steps, if the limit allows.
    5. If that does not identify L, continue with more runs, up to the limit.

    Runs also become twice as long, up to a whole training, while none of them has learned enough.

    The estimate is the 95% upper bound of L, so that 2/L is a rate at which at least 95% of trainings converge. It
    covers the luck of the runs and a threshold that falls on the way from runs to whole trainings (docs/lab/certified).

    L is identified if the threshold of the runs is known within a factor 2, some run failed, and the best run's loss
    fell by 30% or has levelled off.
    This L is an *effective* one: it holds for this optimizer, batch size and schedule, and is not the smoothness
    constant of the loss. On a quadratic of curvature λ, it is λ for plain gradient descent, and λ/(1 + β) with momentum
    β (`largest_stable_rate`).

    Args:
        losses_at: `losses_at(rate, draw, steps)` trains for `steps` steps and yields the loss of each. Another draw
            (0, 1, 2, …) means other initial weights and another data order. If your schedule decays, go through all
            of it in these steps; the rate is its largest.
        budget: steps that all runs together take at first; 15% of a training is a good choice.
        limit: steps that all runs together take at most, if the budget does not identify L. By default the budget.
        whole: steps of a whole training. By default trainings are taken to be 8 times as long as the longest runs.
        steps: the length of a run. By default the first ones take 60 steps. Runs of a given length are not made longer.
        start: the first rate to try, for instance your present one.
        optimizer: the one that `losses_at` uses, or its name; the estimate says that it holds for this one.
        say: told when the search continues beyond the budget.

    Returns:
        The estimate. `details` holds `rates`, `converged`, `initial`, `final` and `taken` (steps) of every run, `curve`
        as pairs of rate and the probability that a whole training converges, `threshold` (the rate at which half of
        all short runs converge), `steps`, `spent`, `budget`, `limit` and `optimizer`.

    >>> def losses_at(rate, draw, steps, curvature=4.0):  # gradient descent on ½ · 4 · θ², from ±1
    ...     theta = (-1.0) ** draw
    ...     for _ in range(steps):
    ...         yield 0.5 * curvature * theta**2
    ...         theta -= rate * curvature * theta
    >>> estimate = find_edge(losses_at, budget=1000)
    >>> estimate.identified, 4.0 < estimate.constant < 12.0  # an upper bound
    (True, True)
    """
    limit = budget if limit is None else limit
    steps_of_run = _check(budget, limit, steps, start)
    longest = steps or whole or limit
    search = _Search(losses_at, start, steps_of_run, max(budget, steps_of_run), limit, longest, whole, say or _ignore)
    search.run()
    return search.conclude(budget, whole, described(optimizer))


def _ignore(_message: str) -> None:
    """Discard the message."""


def _check(budget: int, limit: int, steps: int | None, start: float) -> int:
    check_number("start", start)
    check_whole("budget", budget)
    check_whole("limit", limit)
    if steps is not None:
        check_whole("steps", steps)
    if not (math.isfinite(start) and start > 0):
        raise InputError(f"start={start} is no learning rate; pass a positive one, for instance start=0.1.")
    if steps is not None and steps < 1:
        raise InputError(f"steps={steps} is too few for a run; pass 1 or more, or leave it out.")
    if limit < budget:
        raise InputError(f"limit={limit} is below the budget of {budget} steps; raise it, or leave it out.")
    steps = steps or max(min(FIRST_LENGTH, limit // 4), SHORTEST)
    if steps > limit:
        raise InputError(
            f"A budget of {limit} steps does not pay for a single run of {steps}. "
            f"Raise it, to {FEWEST_RUNS * steps} for instance, or make the runs shorter with steps."
        )
    return steps


@dataclass
class _Search:
    """Runs so far, and the decisions that follow from them: the next rate, longer runs, or the end."""

    losses_at: LossesAt
    start: float
    steps: int  # of a run
    budget: int  # steps of all runs together; it grows
    limit: int  # beyond which it does not
    longest: int  # steps that a run may take
    whole: int | None  # steps of a whole training
    say: Callable[[str], None]
    runs: list[BriefRun] = field(default_factory=list)
    share_before: float = 0.0  # of the initial loss that shorter runs lost at most
    draws: int = 0
    spent: int = 0

    def __post_init__(self) -> None:
        # Once L is identified, steps that all runs together may take to know it better.
        self.improve_limit = max(self.budget, min(self.limit, FEWEST_IN_ALL))
        self.center, self.reach = self.start, UNKNOWN
        self._judge()

    def _judge(self) -> None:
        self.verdicts = converged(self.runs)
        self.curve = DoseResponse(self.center, [run.rate for run in self.runs], self.verdicts, self.reach)

    def run(self) -> None:
        rate = self.start
        while self._may_go_on():
            losses = self.losses_at(rate, self.draws, self.steps)
            self.runs.append(train_briefly(losses, rate=rate, steps=self.steps, so_far=self.runs))
            self.draws += 1
            self.spent += len(self.runs[-1].losses)
            self._judge()
            if not self.doubts and not self._improvable:
                return
            rate = self._next_rate()

    def _may_go_on(self) -> bool:
        """Whether there are steps left for a run; as long as L is not identified, the budget grows up to the limit."""
        if self.spent + self.steps <= self.budget:
            return True
        if self.spent + self.steps > (self.limit if self.doubts else self.improve_limit):
            return False
        reason = f"L is not identified yet ({self.doubts[0]})" if self.doubts else "L can be known better"
        self.budget = min(2 * max(self.budget, self.spent), self.limit)
        self.say(f"{reason}; the short runs may now take {self.budget:,} steps.")
        return True

    def _lengthen(self, steps: int) -> None:
        """Make runs longer, if the limit allows; earlier ones no longer count, unless they blew up."""
        if steps <= self.steps:
            return
        self.say(f"Runs of {self.steps:,} steps say too little about longer ones; they now take {steps:,} steps.")
        yardstick = Yardstick.of(self.runs)
        self.share_before = yardstick.share if yardstick else 0.0
        self.steps, self.runs = steps, [run for run in self.runs if run.blew_up]
        self._judge()

    @property
    def _improvable(self) -> bool:
        """Whether more runs, or longer ones, would make 2/L more reliable."""
        return not self._is_within(NARROW) or self._may_be_longer

    @property
    def _may_be_longer(self) -> bool:
        return self._next_length >= WORTHWHILE * self.steps

    @property
    def _next_length(self) -> int:
        longest = self.longest // LARGEST_PART if self.whole else self.longest
        return min(LONGER * self.steps, (self.improve_limit - self.spent) // FEWEST_RUNS, longest)

    def _is_within(self, factor: float) -> bool:
        """Whether the threshold of runs of this length is known within a factor."""
        low, high = self.curve.interval()
        return high <= factor * low

    @property
    def times_longer(self) -> float:
        """How much longer a whole training is than the longest runs."""
        return max(self.whole / self.steps, 1.0) if self.whole else USUALLY_LONGER

    @property
    def _learned(self) -> bool:
        """Whether some run came far enough down to judge others by.

        That is by 30%; less, if runs of half the length came nearly as far, or if the run is a whole training.
        """
        yardstick = Yardstick.of(self.runs)
        share = yardstick.share if yardstick else 0.0
        levelled_off = 0 < share < LEVEL * self.share_before
        return share >= LEARNED or levelled_off or (share > 0 and self.steps == self.whole)

    def _next_rate(self) -> float:
        """The most informative rate, unless another one may learn more: all runs are judged by the best one."""
        if not self._learned and self._untried is None:
            self._lengthen(min(2 * self.steps, (self.limit - self.spent) // FEWEST_RUNS, self.longest))
        if not self._learned:
            return self._untried or self.curve.most_informative_rate()
        yardstick, lowest = Yardstick.of(self.runs), min(run.rate for run in self.runs)
        if yardstick and yardstick.share < PLENTY and yardstick.best.rate == lowest:
            return lowest / LEAP
        if yardstick and self._may_be_longer and not self.doubts:
            self.center, self.reach = self.curve.threshold(), NEARBY
            self._lengthen(self._next_length)
            return yardstick.best.rate / 2  # in longer runs, lower rates do better; the others are judged by this one
        return self.curve.most_informative_rate()

    @property
    def _untried(self) -> float | None:
        """While no run has learned: a rate near the start at which one might."""
        tried = [run.rate for run in self.runs]
        blew_up = [run.rate for run in self.runs if run.blew_up]
        for rate in (self.start, self.start * LEAP, self.start / LEAP):
            if rate < min(blew_up, default=math.inf) and not any(math.isclose(rate, other) for other in tried):
                return rate
        return None

    @property
    def doubts(self) -> list[str]:
        """Why L is not identified, each with its cure."""
        if not self.runs:
            return ["no run of this length is over yet"]
        found, yardstick = [], Yardstick.of(self.runs)
        if not self._learned:
            share = yardstick.share if yardstick else 0.0
            found.append(f"the loss of the best run fell by only {share:.0%}, so the runs are too short")
        if not self._is_within(IDENTIFIED):
            low, high = self.curve.interval()
            found.append(f"the runs are too few: the threshold may be anywhere from {low:.3g} to {high:.3g}")
        if all(self.verdicts):
            found.append(f"every rate up to {max(run.rate for run in self.runs):.3g} converged")
        return found

    def conclude(self, budget: int, whole: int | None, optimizer: str) -> LipschitzEstimate:
        if Yardstick.of(self.runs) is None:
            tried = ", ".join(f"{run.rate:.3g}" for run in sorted(self.runs, key=lambda run: run.rate))
            raise DivergedError(
                f"At none of the rates {tried} did the loss fall within {self.steps} steps. Start from a smaller "
                "rate, or raise the budget (in an experiment lipschitz.limit)."
            )
        curve, doubts = self.curve, self.doubts
        star = curve.rate_for(RELIABLE, 1 - CERTAINTY, longer=self.times_longer)
        highest = curve.rate_for(RELIABLE, CERTAINTY, longer=self.times_longer, rising=True)
        if all(curve.survived):  # no rate was seen to fail
            star, highest = min(star, max(curve.rates)), math.inf
        cost = f"{self.spent:,} steps" if whole is None else f"{self.spent / whole:.0%} of one training"
        source = f"{f'with {optimizer}, ' if optimizer else ''}from {self.draws} short runs ({cost})"
        if is_adaptive(optimizer):
            source += "; with an adaptive optimizer these are upper ends, so also try a quarter and a tenth of 1/L"
        cure = "" if not doubts else f"; {'; '.join(doubts)}: raise the budget (in an experiment lipschitz.limit)"
        at_inverse, at_twice = curve.survival([star / 2, star], longer=self.times_longer)
        return LipschitzEstimate(
            constant=2 / star,
            interval=(2 / highest, 2 / star),
            method="edge",
            identified=not doubts,
            basis=f"{source}{cure}",
            convergence=(at_inverse, at_twice),
            details=_details(self.runs, curve, self.times_longer)
            | {
                "threshold": curve.threshold(),
                "steps": self.steps,
                "spent": self.spent,
                "budget": budget,
                "limit": self.limit,
                "optimizer": optimizer,
            },
        )


def _details(runs: Sequence[BriefRun], curve: DoseResponse, longer: float) -> dict[str, Any]:
    rates = list(curve.rates)
    shown = np.geomspace(min(rates) / 2, max(rates) * 2, 61).tolist()
    return {
        "rates": rates,
        "converged": list(curve.survived),
        "initial": [run.initial for run in runs],
        "final": [run.final if math.isfinite(run.final) else None for run in runs],
        "taken": [len(run.losses) for run in runs],
        "curve": [list(pair) for pair in zip(shown, curve.survival(shown, longer=longer), strict=True)],
    }
