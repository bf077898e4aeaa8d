"""What trainings say beside their accuracy: whether L stands, whether the theorem held, what else differed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

from excite.lipschitz import ESTIMATORS, LipschitzEstimate
from excite.runs.arms import OWN, in_order
from excite.runs.experiment import options_of
from excite.runs.folder import ArmFolder, RunFolder, arm_title
from excite.runs.records import Certified
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
    if estimate.method == "stated":
        return Standing(False, "stated, not measured")
    return Standing(estimate.identified, "identified" if estimate.identified else "the data do not identify it")


def _objection(
    estimate: LipschitzEstimate, arms: Iterable[ArmFolder], measured: LipschitzEstimate | None
) -> str | None:
    """What a training says against it; an L without a lower bound says nothing about rates above 2/L.

    A training that diverged at a rate that should be safe is an objection, unless another converged at a higher rate.
    Safe is 2/L if L is an upper bound, otherwise 1/L, or anything below the interval of 2/L. A training that converged
    above the interval of 2/L is an objection, too. For several trainings at 2/L see `doubted_together`.
    `measured` is an estimate from short runs: an interval that does not overlap with it is in doubt.
    """
    trained = [arm for arm in arms if not arm.arm.control]  # whose batches may be of another size than L's
    edge = estimate.learning_rate(2)
    least = edge if estimate.convergence else edge / 2
    safe = max(least * (1 + ROUNDING), 2 / estimate.interval[1] * (1 - ROUNDING))
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
    """The same for the seeds of one experiment: more trainings at 2/L or below failed than chance explains.

    At 2/L of an upper bound one training in twenty may fail. Of other constants, 2/L is the middle of an interval, so
    that half may fail.
    """
    found = {}
    arms = [
        (arm, run.estimates[by].estimate)
        for run in runs
        for arm in run.arms
        if arm.arm.multiple and arm.arm.multiple <= AT_THE_EDGE and (by := arm.arm.estimator or OWN) in run.estimates
    ]
    for name in dict.fromkeys(arm.name for arm, _ in arms):
        own = [(arm, estimate) for arm, estimate in arms if arm.name == name]
        certified = all(estimate and estimate.convergence for _, estimate in own)
        chance, expected = (0.05, "at least 95%") if certified else (0.5, "at least half")
        failed = sum(_lost(arm) for arm, _ in own)
        if failed and _as_many_or_more(failed, len(own), chance) <= UNLIKELY:
            first = own[0][0]
            words = f"{failed} of {len(own)} trainings at {first.short_title} failed, where {expected} should converge"
            found[called(first.arm.estimator or OWN)] = words
    return found


def _as_many_or_more(failed: int, trainings: int, chance: float) -> float:
    """The probability of at least `failed` failures if each has this chance.

    >>> _as_many_or_more(5, 5, 0.5)
    0.03125
    """
    numbers = range(failed, trainings + 1)
    return sum(math.comb(trainings, k) * chance**k * (1 - chance) ** (trainings - k) for k in numbers)


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


def unmet_premises(runs: Sequence[RunFolder]) -> list[str]:
    """A sentence per arm that trained at a multiple of 1/L where recorded slopes exceed 1/η: the theorem needs η ≤ 1/L.

    The L of short runs is an effective one, 2 over the largest rate that trains reliably. The theorem is about the
    smoothness of the loss, which slopes measure.
    """
    found: dict[str, str] = {}
    for run in runs:
        for arm in run.arms:
            slope = arm.certified.largest_slope if arm.certified else None
            if arm.arm.multiple and slope is not None and slope > 1 / arm.rate and arm.name not in found:
                found[arm.name] = (
                    f"The theorem's premise is not met at {arm.short_title}: recorded slopes of the gradient reach "
                    f"{slope:.3g}, above 1/η = {1 / arm.rate:.3g}."
                )
    return [found[name] for name in in_order(set(found))]


@dataclass(frozen=True)
class CertificateRow:
    """One arm of one run: its certificate, and the rate that the theorem's premise is held against."""

    run: str
    arm: str
    found: Certified
    rate: float  # η¹
    source: str

    @property
    def premise(self) -> bool | None:
        """Whether no recorded slope exceeds 1/η, as the theorem requires; None if there is no slope."""
        return None if self.found.largest_slope is None else self.found.largest_slope <= 1 / self.rate


def certificates(runs: Sequence[tuple[RunFolder, str]]) -> list[CertificateRow]:
    """A row per arm that has one, each with what its run is called."""
    rows = []
    for run, label in runs:
        for arm in run.arms:
            if arm.certified:
                source = f"{label}/" if label else ""
                rows.append(
                    CertificateRow(
                        run=label,
                        arm=arm_title([arm]),
                        found=arm.certified,
                        rate=arm.rate,
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
