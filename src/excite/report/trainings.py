"""What trainings say beside their accuracy: whether L stands, whether the theorem held, what else differed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

from excite.lipschitz import ESTIMATORS, LipschitzEstimate
from excite.runs.arms import OWN
from excite.runs.experiment import options_of
from excite.runs.folder import ArmFolder, RunFolder, arm_title
from excite.runs.stored import Certified
from excite.training.history import EpochMetrics

ROUNDING = 1e-9
UNLIKELY = 0.05
AT_THE_EDGE = 2.0  # times 1/L


@dataclass(frozen=True)
class Standing:
    """Whether an estimate is to be trusted, and why not."""

    trusted: bool
    words: str

    def __str__(self) -> str:
        return f"{'yes' if self.trusted else 'no'}: {self.words}"


def standing(
    estimate: LipschitzEstimate, arms: Iterable[ArmFolder], measured: LipschitzEstimate | None = None
) -> Standing:
    """What the data say by themselves, unless a training of the run speaks against it."""
    if words := _objection(estimate, arms, measured):
        return Standing(False, words)
    return Standing(estimate.identified, "identified" if estimate.identified else "the data do not identify it")


def _objection(
    estimate: LipschitzEstimate, arms: Iterable[ArmFolder], measured: LipschitzEstimate | None
) -> str | None:
    """What a training says against it; a lower bound of 2/L says nothing of rates above it.

    At 2/L itself half of all trainings diverge, and some below it. One that diverged speaks against L at 1/L, or below
    all that the interval leaves to 2/L, where none ended well at a higher rate; one that ended well does above all that
    the interval leaves. For several at 2/L see `doubted_together`.
    `measured` is an estimate that short trainings gave: one whose interval lies wholly elsewhere is in doubt, too.
    """
    trained = [arm for arm in arms if not arm.arm.control]  # whose batches may be of another size than L's
    edge = estimate.learning_rate(2)
    safe = max(edge / 2 * (1 + ROUNDING), 2 / estimate.interval[1] * (1 - ROUNDING))
    fine = [arm.rate for arm in trained if not _lost(arm)]
    diverged = [arm.rate for arm in trained if arm.problem and max(fine, default=0.0) < arm.rate <= safe]
    if diverged:
        return f"training diverged at {min(diverged):.3g}, so 2/L = {edge:.3g} seems too high"
    highest = 2 / estimate.interval[0] if estimate.interval[0] > 0 else math.inf
    if fine and max(fine) > highest * (1 + ROUNDING):
        return f"training converged at {max(fine):.3g}, so 2/L = {edge:.3g} seems too low"
    if measured and not estimate.overlaps(measured):
        smallest, largest = measured.interval
        reach = f"within {2 / largest:.3g} to {2 / smallest:.3g}" if smallest > 0 else f"above {2 / largest:.3g}"
        return f"its 2/L = {edge:.3g} is not {reach}, where short trainings stop converging"
    return None


def _lost(arm: ArmFolder) -> bool:
    return bool(arm.problem or (arm.evaluation and arm.evaluation.learned_nothing))


def standing_in(run: RunFolder, estimate: LipschitzEstimate) -> Standing:
    """By all that is known in the run: its trainings, and what short ones gave."""
    return standing(estimate, run.arms, _measure(run))


def relied_on(run: RunFolder) -> dict[str, LipschitzEstimate]:
    """The run's own L and those that other arms' rates came from, each by what a sentence calls it."""
    names = dict.fromkeys([OWN, *(arm.arm.estimator or OWN for arm in run.arms)])
    known = {name: run.estimates[name].estimate for name in names if name in run.estimates}
    return {called(name): found for name, found in known.items() if found}


def called(name: str) -> str:
    """What a sentence calls the L of an estimator."""
    return f"L by {name}" if name else "L"


def doubted(run: RunFolder) -> dict[str, str]:
    """What its trainings say against those of them that rates came from."""
    measured = _measure(run)
    judged = {name: _objection(found, run.arms, measured) for name, found in relied_on(run).items()}
    return {name: words for name, words in judged.items() if words}


def doubted_together(runs: Sequence[RunFolder]) -> dict[str, str]:
    """The same of the seeds of one experiment: too many trainings at 2/L, or below, were lost for every second to be.

    Of five trainings that end well as often as not, all are lost in one of 32 cases, of four in one of 16.
    """
    found = {}
    arms = [arm for run in runs for arm in run.arms if arm.arm.multiple and arm.arm.multiple <= AT_THE_EDGE]
    for name in dict.fromkeys(arm.name for arm in arms):
        own = [arm for arm in arms if arm.name == name]
        lost = sum(map(_lost, own))
        as_many = sum(math.comb(len(own), number) for number in range(lost, len(own) + 1))
        if as_many <= UNLIKELY * 2 ** len(own):
            words = f"{lost} of {len(own)} trainings at {own[0].short_title} were lost, half or more should end well"
            found[called(own[0].arm.estimator or OWN)] = words
    return found


def method_of(run: RunFolder, name: str = OWN) -> str:
    """Which of `ESTIMATORS` gave the L that the run calls `name`; the estimate itself may say it in other words."""
    return str(options_behind(run, name)["method"])


def options_behind(run: RunFolder, name: str) -> Mapping[str, Any]:
    """As they were when it was estimated; a preset may have been added to the study later than `run`."""
    return run.estimates[name].options or options_of(run.experiment, name)


def by_short_trainings(run: RunFolder) -> LipschitzEstimate | None:
    """The run's own L, if short trainings gave it."""
    kind = ESTIMATORS.get(method_of(run)) if run.estimate else None
    return run.estimate if kind and kind.needs == "short trainings" else None


def _measure(run: RunFolder) -> LipschitzEstimate | None:
    """What others can be held against: the L of short trainings, if it is identified or a bound, and not in doubt."""
    found = by_short_trainings(run)
    if found is None or _objection(found, run.arms, None):
        return None
    return found if found.identified or found.interval[0] == 0 else None


@dataclass(frozen=True)
class CertificateRow:
    """One arm of one run: its certificate, and the L that Assumption 1 is held against."""

    run: str
    arm: str
    found: Certified
    constant: float | None  # L
    source: str

    @property
    def smooth(self) -> bool | None:
        """Whether no recorded slope refutes Assumption 1; None where there is no L or no slope."""
        if self.constant is None or self.found.largest_slope is None:
            return None
        return self.found.largest_slope <= self.constant


def certificates(runs: Sequence[tuple[RunFolder, str]]) -> list[CertificateRow]:
    """A row per arm that has one, each with what its run is called."""
    rows = []
    for run, label in runs:
        for arm in run.arms:
            if arm.certified:
                estimate = run.estimate_of(arm.name)
                source = f"{label}/" if label else ""
                rows.append(
                    CertificateRow(
                        run=label,
                        arm=arm_title([arm]),
                        found=arm.certified,
                        constant=estimate.constant if estimate else None,
                        source=f"{source}{arm.name}/{arm.certificate_file.name}",
                    )
                )
    return rows


@dataclass(frozen=True)
class Confounders:
    """Of one training, or the means of several: what is known to matter by itself, and how far it came.

    None where it is not known, as of trainings that older versions wrote down.
    """

    batch_size: float  # B
    rate_per_image: float  # η¹/B
    rate_times_decay: float  # η¹·λ
    steps: float | None
    steps_after_drop: float | None  # past the schedule's last drop; None where it never drops
    final_rate: float | None
    final_loss: float | None  # mean over the batches of the last epoch
    train_accuracy: float | None  # at the end, a share


def confounders(run: RunFolder, arm: ArmFolder) -> Confounders:
    training, epochs, steps = run.experiment.training, arm.epochs, arm.outcome.steps
    batch_size = arm.outcome.batch_size or training.batch_size
    last = epochs[-1] if epochs else None
    after = _epochs_after_drop(epochs)
    return Confounders(
        batch_size=batch_size,
        rate_per_image=arm.rate / batch_size,
        rate_times_decay=arm.rate * training.weight_decay,
        steps=steps,
        steps_after_drop=None if after is None or steps is None else steps * after / len(epochs),
        final_rate=last.rate if last else None,
        final_loss=last.loss if last and math.isfinite(last.loss) else None,
        train_accuracy=arm.outcome.train_accuracy,
    )


def mean_of(several: Sequence[Confounders]) -> Confounders:
    """Over seeds, of those that are known.

    >>> one, other = (Confounders(32, 0.1, 0.0, steps, None, 0.1, 1.0, None) for steps in (10, 30))
    >>> mean_of([one, other]).steps, mean_of([one, other]).train_accuracy
    (20.0, None)
    """
    means: dict[str, Any] = {}
    for field in fields(Confounders):
        known = [value for one in several if (value := getattr(one, field.name)) is not None]
        means[field.name] = fmean(known) if known else None
    return Confounders(**means)


def _epochs_after_drop(epochs: Sequence[EpochMetrics]) -> int | None:
    """With the last rate, if another one came before it."""
    drops = [
        number
        for number in range(1, len(epochs))
        if not math.isclose(epochs[number].rate, epochs[number - 1].rate, rel_tol=1e-9)
    ]
    return len(epochs) - drops[-1] if drops else None
