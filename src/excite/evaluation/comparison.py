"""Compare two models on the same images, and two arms over several seeds, with paired 95% intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.evaluation.result import Z95, Evaluation

Pairs = Sequence[tuple[Evaluation, Evaluation]]  # per seed: the baseline's evaluation and the arm's
Gains = NDArray[np.float64]  # seeds × images: 1 where only the arm is right, −1 where only the baseline is, else 0


@dataclass(frozen=True)
class Comparison:
    """How often each of two models is right where the other is wrong."""

    on: str
    total: int
    only_first: int
    only_second: int
    interval: tuple[float, float]  # 95%, of the difference

    @property
    def difference(self) -> float:
        """Accuracy of the second model minus accuracy of the first."""
        return (self.only_second - self.only_first) / self.total

    @property
    def p_value(self) -> float:
        """McNemar's exact test, two-sided."""
        return mcnemar(self.only_first, self.only_second)

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return (
            f"{self.on}: {100 * self.difference:+.2f} points ({low:+.2f} to {high:+.2f}), "
            f"McNemar p = {self.p_value:.2g}; of {self.total} examples {self.only_second} are right only for the "
            f"second model, {self.only_first} only for the first"
        )


def compare(first: Evaluation, second: Evaluation, on: str = "worst") -> Comparison:
    """Compare two evaluations of the same examples on `"clean"`, an attack both met, or `"worst"` of the same attacks.

    The interval is Bonett and Price's (2012): Wald's for paired shares, after adding one example that only the first
    model gets right and one that only the second does. It keeps its width where few or no examples tell them apart.
    """
    gains = _gains(first, second, on)
    center, half = gains.sum() / (len(gains) + 2), Z95 * variance_of_mean(gains) ** 0.5
    return Comparison(
        on=on,
        total=len(gains),
        only_first=int((gains < 0).sum()),
        only_second=int((gains > 0).sum()),
        interval=(max(-1.0, float(center - half)), min(1.0, float(center + half))),
    )


def variance_of_mean(gains: NDArray[np.float64]) -> float:
    """The variance of the mean of gains in [−1, 1]. One gain of +1 and one of −1 are added, so it is never zero."""
    more = np.append(gains, [1.0, -1.0])
    return float(more.var() / len(more))


def mcnemar(only_first: int, only_second: int) -> float:
    """The p-value of a split this uneven if each disagreement were a coin toss.

    >>> mcnemar(0, 5)
    0.0625
    """
    from scipy.stats import binomtest

    tosses = only_first + only_second
    return float(binomtest(only_first, tosses).pvalue) if tosses else 1.0


@dataclass(frozen=True)
class PairedDifference:
    """The mean over seeds of the arm's accuracy minus the baseline's."""

    difference: float
    interval: tuple[float, float]  # 95%
    seeds: int

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return f"{100 * self.difference:+.2f} points ({low:+.2f} to {high:+.2f}), {self.seeds} seeds"


def paired_difference(pairs: Pairs, on: str = "worst") -> PairedDifference:
    """The mean difference on `"clean"`, `"worst"` or an attack, with an interval over seeds and images.

    With one seed it is that of `compare`, which does not cover variation between trainings. With several, see
    `interval_over_seeds`.
    """
    if not pairs:
        raise InputError("The baseline and the arm have no evaluated seed in common; evaluate both on the same seeds.")
    if len(pairs) == 1:
        comparison = compare(*pairs[0], on)
        return PairedDifference(comparison.difference, comparison.interval, 1)
    by_examples: dict[str, list[NDArray[np.float64]]] = {}
    for baseline, arm in pairs:
        by_examples.setdefault(baseline.examples, []).append(_gains(baseline, arm, on))
    gains = [np.stack(rows) for rows in by_examples.values()]
    mean = float(np.mean(np.concatenate([block.mean(axis=1) for block in gains])))
    return PairedDifference(mean, interval_over_seeds(gains), len(pairs))


def interval_over_seeds(gains: Sequence[Gains]) -> tuple[float, float]:
    """A 95% interval of the mean gain over S ≥ 2 seeds; each block of `gains` holds seeds evaluated on the same images.

    The S means vary between trainings; the choice of images that several seeds share moves all of them together. Half
    the width of the interval is the root of

        t² V_seeds / S + z² V_shared,    or of  z² V_images  if that is larger.

    V_seeds is the variance of the means, t Student's quantile with S − 1 degrees of freedom and z the normal one.
    V_shared is what common images add to the variance of the overall mean without showing in V_seeds: in a block
    (V_mean − V_rest / seeds) / n for n images, V_mean being the variance over images of the mean gain over the block's
    seeds and V_rest the mean square of the residual gains. V_images is the variance of the overall mean due to the
    choice of images, for fixed trainings. It is a lower bound, because few seeds may agree by chance.

    Of 2,000 simulated studies of 200 images each, for 2, 3 and 5 seeds, on the same or on different images, with and
    without an effect, with equal and with unequal trainings, 95.7% to 99.6% of the intervals contain the true value;
    this module's test prints each. With two seeds the intervals are wide.
    """
    from scipy.special import stdtrit

    means = np.concatenate([block.mean(axis=1) for block in gains])
    seeds, mean = len(means), float(means.mean())
    weights = [(len(block) / seeds) ** 2 for block in gains]
    of_images = sum(w * variance_of_mean(block.mean(axis=0)) for w, block in zip(weights, gains, strict=True))
    shared = sum(w * _shared(block) for w, block in zip(weights, gains, strict=True))
    of_seeds = float(stdtrit(seeds - 1, 0.975)) ** 2 * float(means.var(ddof=1)) / seeds
    half = max(of_seeds + Z95**2 * shared, Z95**2 * of_images) ** 0.5
    return max(-1.0, mean - half), min(1.0, mean + half)  # accuracies cannot differ by more


def _gains(first: Evaluation, second: Evaluation, on: str) -> NDArray[np.float64]:
    if first.examples != second.examples:
        raise InputError("These evaluations used different examples; evaluate both models on the same ones.")
    gains: NDArray[np.float64] = np.asarray(second.outcomes(on), dtype=float) - np.asarray(first.outcomes(on))
    first_attacks, second_attacks = (
        {name: attack.description for name, attack in model.attacks.items() if on in (name, "worst")}
        for model in (first, second)
    )
    if first_attacks != second_attacks:
        raise InputError(
            f"These evaluations used different attacks for {on!r}: {_listed(first_attacks)}, and "
            f"{_listed(second_attacks)}. Evaluate both models under the same ones, or compare them on one of both."
        )
    return gains


def _listed(attacks: Mapping[str, str]) -> str:
    return "; ".join(f"{name} ({words})" for name, words in attacks.items()) or "none"


def _shared(gains: Gains) -> float:
    """What the choice of shared images adds to the variance of the mean of `gains`; zero with one seed."""
    seeds, images = gains.shape
    if seeds == 1 or images == 1:
        return 0.0
    over_seeds = gains.mean(axis=0)
    rest = gains - over_seeds - gains.mean(axis=1, keepdims=True) + gains.mean()
    rest_variance = (rest**2).sum() / ((seeds - 1) * (images - 1))
    return float(max(0.0, over_seeds.var(ddof=1) - rest_variance / seeds) / images)
