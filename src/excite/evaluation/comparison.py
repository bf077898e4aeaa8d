"""Compare two models on the same images, and two arms over several seeds, with paired 95% intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.evaluation.result import Z95, Evaluation

SMALLEST = 1e-12  # p-value; smaller ones are not distinguished
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
    tosses, ways, tail = only_first + only_second, 1, 0  # not scipy's: it takes a quarter of a second to import
    for heads in range(min(only_first, only_second) + 1):
        tail += ways  # the number of ways to toss so many heads
        ways = ways * (tosses - heads) // (heads + 1)
    return min(1.0, float(2 * tail / 2**tosses))


@dataclass(frozen=True)
class PairedDifference:
    """The mean over seeds of the arm's accuracy minus the baseline's."""

    difference: float
    interval: tuple[float, float]  # 95%
    seeds: int
    p_value: float  # two-sided, that the mean difference of such trainings is zero

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return f"{100 * self.difference:+.2f} points ({low:+.2f} to {high:+.2f}), {self.seeds} seeds"


def paired_difference(pairs: Pairs, on: str = "worst") -> PairedDifference:
    """The mean difference on `"clean"`, `"worst"` or an attack, with an interval over seeds and images.

    With one seed, interval and p-value are those of `compare`, which do not cover variation between trainings. With
    several, see `over_seeds`.
    """
    if not pairs:
        raise InputError("The baseline and the arm have no evaluated seed in common; evaluate both on the same seeds.")
    if len(pairs) == 1:
        comparison = compare(*pairs[0], on)
        return PairedDifference(comparison.difference, comparison.interval, 1, comparison.p_value)
    by_examples: dict[str, list[NDArray[np.float64]]] = {}
    for baseline, arm in pairs:
        by_examples.setdefault(baseline.examples, []).append(_gains(baseline, arm, on))
    return over_seeds([np.stack(rows) for rows in by_examples.values()])


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number (Holm 1979).

    If no difference is real, any of the adjusted p-values is below 0.05 with a probability of at most 5%.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = list(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, (len(p_values) - rank) * p_values[number])
        adjusted[number] = min(1.0, largest)
    return adjusted


def over_seeds(blocks: Sequence[Gains]) -> PairedDifference:
    """The mean gain over S ≥ 2 seeds, with an interval for their variation between trainings and choices of images.

    Each of the `blocks` holds seeds evaluated on the same images.

    The S means vary between trainings; the choice of images that several seeds share moves all of them together. Half
    the width of the 95% interval is the root of

        t² V_seeds / S + z² V_shared,    or of  z² V_images  if that is larger.

    V_seeds is the variance of the means, t Student's quantile with S − 1 degrees of freedom and z the normal one. The
    p-value is 1 minus the level of the interval that just reaches zero.

    V_shared is what common images add to the variance of the overall mean without showing in V_seeds: in a block
    (V_mean − V_rest / seeds) / n for n images, V_mean being the variance over images of the mean gain over the block's
    seeds and V_rest the mean square of the residual gains. V_images is the variance of the overall mean due to the
    choice of images, for fixed trainings. It is a lower bound, because few seeds may agree by chance.

    Of 2,000 simulated studies of 200 images each, for 2, 3 and 5 seeds, on the same or on different images, with and
    without an effect, with equal and with unequal trainings, 95.7% to 99.6% of the intervals contain the true value;
    this module's test prints each. With two seeds the intervals are wide.
    """
    from scipy.special import ndtri, stdtrit

    means = np.concatenate([block.mean(axis=1) for block in blocks])
    n_seeds, mean = len(means), float(means.mean())
    weighted = [((len(block) / n_seeds) ** 2, block) for block in blocks]
    of_seeds = means.var(ddof=1) / n_seeds
    of_shared = sum(weight * _shared(block) for weight, block in weighted)
    of_images = sum(weight * variance_of_mean(block.mean(axis=0)) for weight, block in weighted)

    def half_width(p: float) -> float:
        """Of the interval that misses the true value with probability `p`."""
        t, z = stdtrit(n_seeds - 1, 1 - p / 2), ndtri(1 - p / 2)
        return float(max(t**2 * of_seeds + z**2 * of_shared, z**2 * of_images) ** 0.5)

    low, high = math.log(SMALLEST), 0.0
    for _ in range(60):  # bisection: wider intervals belong to smaller p
        middle = (low + high) / 2
        low, high = (low, middle) if half_width(math.exp(middle)) < abs(mean) else (middle, high)
    half = half_width(0.05)
    interval = max(-1.0, mean - half), min(1.0, mean + half)  # accuracies cannot differ by more
    return PairedDifference(mean, interval, n_seeds, math.exp(high))


def _gains(first: Evaluation, second: Evaluation, on: str) -> NDArray[np.float64]:
    if first.examples != second.examples:
        raise InputError(
            "These evaluations used different examples; evaluate both models on the same ones "
            "(runs need the same data.test_examples)."
        )
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
