"""The certified L is 2/η*: short runs bound η*, the largest rate at which 95% of whole trainings converge."""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from excite.errors import DivergedError, InputError
from excite.lipschitz.brief_run import Before, BriefRun, Yardstick, converged, train_briefly
from excite.lipschitz.dose_response import UNKNOWN, DoseResponse
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Needs, ShortTrainings
from excite.quantities import check_positive, check_whole

if TYPE_CHECKING:
    from torch.optim import Optimizer

LossesAt = Callable[[float, int, int], Iterable[float]]

RELIABLE = 0.95  # share of trainings that converge at η*
CERTAINTY = 0.95  # probability that 2/L is at most η*
FIRST_LENGTH = 60  # steps of the first runs if the limit allows; shorter runs end within the first oscillations
SHORTEST = 20  # fewest steps of a run
FEWEST_IN_ALL = 5000  # default limit on the steps of all runs together, if a training is shorter than that
USUALLY_LONGER = 8.0  # assumed length of a training relative to the longest runs, if `whole` is not given
IDENTIFIED = 2.0  # L is identified if the threshold of the runs is known within this factor
NARROW = 1.5  # the search ends once the threshold is known within this factor
LONGER = 4  # factor by which runs become longer, because the threshold drifts with the length
WORTHWHILE = 1.5  # runs keep their length if they could become longer by less than this factor
LARGEST_PART = 4  # runs are lengthened to at most a quarter of a training
NEARBY = 0.5  # e-folds in which the threshold of longer runs is expected
LEARNED = 0.3  # runs are too short if no loss fell by this share of the initial loss, unless it has leveled off:
LEVEL = 1.25  # the best fall is less than this factor larger than in shorter runs
FEWEST_RUNS = 8  # number of runs that the limit must still allow when runs are made longer
LEAP = 4.0  # factor between rates when no run has learned yet
PLENTY = 0.5  # a run whose loss fell by this share of the initial loss is a good enough reference


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
        check_positive("budget", self.budget)
        if self.limit is not None:
            check_positive("limit", self.limit)
        if self.steps is not None:
            check_whole("steps", self.steps, least=1)

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
    before: Sequence[float] | None = None,
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
    β.

    Args:
        losses_at: `losses_at(rate, draw, steps)` trains for `steps` steps and yields the loss of each. Another draw
            (0, 1, 2, …) means other initial weights and another data order. If your schedule decays, go through all
            of it in these steps; the rate is its largest.
        budget: steps that all runs together take at first; 15% of a training is a good choice.
        limit: steps that all runs together take at most, if the budget does not identify L. By default the budget.
        whole: steps of a whole training. By default trainings are taken to be 8 times as long as the longest runs.
        steps: the length of a run. By default the first ones take 60 steps. Runs of a given length are not made longer.
        start: the first rate to try, for instance your present one.
        before: losses of at least two batches before training, if all runs start from the same trained weights. A run
            then only converges if its loss never rises above them, in the mean over a quarter of the run.
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
    if before is not None and len(before) < 2:
        raise InputError(f"before holds {len(before)} losses; pass those of at least two batches.")
    limit = budget if limit is None else limit
    first_length = max(min(FIRST_LENGTH, limit // FEWEST_RUNS), SHORTEST) if steps is None else steps
    check_positive("start", start)
    for name, count in (("budget", budget), ("limit", limit), ("steps", first_length)):
        check_whole(name, count, least=1)
    if not budget <= limit >= first_length:
        raise InputError(
            f"limit={limit} is below the budget of {budget} steps, or too small for a run of {first_length}. Pass "
            f"budget={FEWEST_RUNS * first_length}."
        )
    search = _Search(
        losses_at=losses_at,
        start=start,
        steps=first_length,
        budget=max(budget, first_length),
        limit=limit,
        longest=steps or whole or limit,
        whole=whole,
        say=say or (lambda _: None),
        before=Before.of(before) if before else None,
    )
    search.run()
    return search.conclude(budget, described(optimizer))


@dataclass
class _Search:
    """Runs so far, and the decisions that follow from them: the next rate, longer runs, or the end."""

    losses_at: LossesAt
    start: float
    steps: int  # length of a run
    budget: int  # steps that all runs together may take; it grows up to the limit
    limit: int
    longest: int  # steps that a run may take
    whole: int | None  # steps of a whole training
    say: Callable[[str], None]
    before: Before | None
    runs: list[BriefRun] = field(default_factory=list)
    share_before: float = 0.0  # largest share of the initial loss that was gone at the end of a shorter run
    draws: int = 0
    spent: int = 0

    def __post_init__(self) -> None:
        # Steps that all runs together may take to make an identified L more precise.
        self.improve_limit = max(self.budget, min(self.limit, FEWEST_IN_ALL))
        self.center, self.reach = self.start, UNKNOWN
        self._judge()

    def _judge(self) -> None:
        self.yardstick = Yardstick.of(self.runs, self.before)
        self.share = self.yardstick.share if self.yardstick else 0.0  # of the initial loss, gone in the best run
        self.verdicts = converged(self.runs, before=self.before)
        self.curve = DoseResponse(self.center, [run.rate for run in self.runs], self.verdicts, self.reach)

    def run(self) -> None:
        rate = self.start
        while self._may_go_on():
            losses = self.losses_at(rate, self.draws, self.steps)
            self.runs.append(train_briefly(losses, rate=rate, steps=self.steps, so_far=self.runs))
            self.draws += 1
            self.spent += len(self.runs[-1].losses)
            self._judge()
            if not self.doubts and self._is_within(NARROW) and not self._may_be_longer:
                return
            rate = self._next_rate()

    def _may_go_on(self) -> bool:
        """Whether there are steps left for a run; as long as L is not identified, the budget grows up to the limit."""
        if self.spent + self.steps <= self.budget:
            return True
        if self.spent + self.steps > (self.limit if self.doubts else self.improve_limit):
            return False
        reason = f"L is not identified yet ({self.doubts[0]})" if self.doubts else "L can be made more precise"
        self.budget = min(2 * max(self.budget, self.spent), self.limit)
        self.say(f"{reason}; the short runs may now take {self.budget:,} steps.")
        return True

    def _lengthen(self, steps: int) -> None:
        """Make runs longer, if the limit allows; earlier ones no longer count, unless they blew up."""
        if steps <= self.steps:
            return
        self.say(f"Runs of {self.steps:,} steps say too little about longer ones; they now take {steps:,} steps.")
        self.share_before = self.share
        self.steps, self.runs = steps, [run for run in self.runs if run.blew_up]
        self._judge()

    @property
    def _may_be_longer(self) -> bool:
        """Whether longer runs would make 2/L more reliable."""
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
        """Whether some loss fell enough to judge other runs by it.

        That is by 30%; less, if it fell nearly as much in runs of half the length, or if the run is a whole training.
        """
        levelled_off = 0 < self.share < LEVEL * self.share_before
        return self.share >= LEARNED or levelled_off or (self.share > 0 and self.steps == self.whole)

    def _next_rate(self) -> float:
        """The most informative rate; a lower one while the best run may not be the reference that it should be."""
        if not self._learned and self._untried is None:
            self._lengthen(min(2 * self.steps, (self.limit - self.spent) // FEWEST_RUNS, self.longest))
        if not self._learned:
            return self._untried or self.curve.most_informative_rate()
        assert self.yardstick is not None  # noqa: S101
        best = self.yardstick.best.rate
        if self.share < PLENTY and best == min(run.rate for run in self.runs):
            return best / LEAP
        if self._may_be_longer and not self.doubts:
            self.center, self.reach = self.curve.threshold(), NEARBY
            self._lengthen(self._next_length)
            return best / 2  # in longer runs, lower rates do better; the others are judged by this one
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
        doubts = []
        if not self._learned:
            doubts.append(f"the loss of the best run fell by only {self.share:.0%}, so the runs are too short")
        if not self._is_within(IDENTIFIED):
            low, high = self.curve.interval()
            doubts.append(f"the runs are too few: the threshold may be anywhere from {low:.3g} to {high:.3g}")
        if all(self.verdicts):
            doubts.append(f"every rate up to {max(run.rate for run in self.runs):.3g} converged")
        return doubts

    def conclude(self, budget: int, optimizer: str) -> LipschitzEstimate:
        if self.yardstick is None:
            tried = ", ".join(f"{rate:.3g}" for rate in sorted(self.curve.rates))
            raise DivergedError(
                f"The loss did not fall within {self.steps} steps at any of the rates {tried}. Start from a smaller "
                "rate, or raise the budget (in an experiment lipschitz.limit)."
            )
        curve, doubts = self.curve, self.doubts
        star = curve.rate_for(RELIABLE, 1 - CERTAINTY, longer=self.times_longer)
        highest = curve.rate_for(RELIABLE, CERTAINTY, longer=self.times_longer, rising=True)
        if all(curve.survived):  # no upper end is known
            star, highest = min(star, max(curve.rates)), math.inf
        share = self.spent / self.whole if self.whole else 0.0
        trainings = f"{share:.0%} of one training" if share < 2 else f"{share:,.0f} times the steps of one training"
        cost = trainings if self.whole else f"{self.spent:,} steps"
        source = f"{f'with {optimizer}, ' if optimizer else ''}from {self.draws} short runs ({cost})"
        if is_adaptive(optimizer):
            source += "; with an adaptive optimizer these are upper ends, so also try a quarter and a tenth of 1/L"
        cure = "" if not doubts else f"; {'; '.join(doubts)}: raise the budget (in an experiment lipschitz.limit)"
        at_inverse, at_twice = curve.survival([star / 2, star], longer=self.times_longer)
        shown = np.geomspace(min(curve.rates) / 2, max(curve.rates) * 2, 61).tolist()
        shares = curve.survival(shown, longer=self.times_longer)
        return LipschitzEstimate(
            constant=2 / star,
            interval=(2 / highest, 2 / star),
            method="edge",
            identified=not doubts,
            basis=f"{source}{cure}",
            convergence=(at_inverse, at_twice),
            details={
                "rates": list(curve.rates),
                "converged": list(curve.survived),
                "initial": [run.initial for run in self.runs],
                "final": [run.final if math.isfinite(run.final) else None for run in self.runs],
                "taken": [len(run.losses) for run in self.runs],
                "curve": [list(pair) for pair in zip(shown, shares, strict=True)],
                "threshold": curve.threshold(),
                "steps": self.steps,
                "spent": self.spent,
                "budget": budget,
                "limit": self.limit,
                "optimizer": optimizer,
            },
        )


def is_adaptive(name: str) -> bool:
    """Whether an optimizer of this name rescales each coordinate of the gradient.

    >>> is_adaptive("AdamW (weight_decay=0.1)"), is_adaptive("SGD (momentum=0.9)")
    (True, False)
    """
    return re.search("ada|rmsprop|lion|shampoo", name.lower()) is not None


def described(optimizer: "Optimizer | str") -> str:
    """The optimizer's name and its options that differ from their defaults, without the rate.

    >>> import torch
    >>> described(torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9, nesterov=True))
    'SGD (momentum=0.9, nesterov=True)'
    """
    if isinstance(optimizer, str):
        return optimizer
    defaults = {name: known.default for name, known in inspect.signature(type(optimizer)).parameters.items()}
    chosen = {
        name: value
        for name, value in optimizer.param_groups[0].items()
        if name in defaults and name not in {"params", "lr"} and value != defaults[name]
    }
    settings = ", ".join(f"{name}={value}" for name, value in chosen.items())
    return type(optimizer).__name__ + (f" ({settings})" if settings else "")
