"""Is an arm more robust than the baseline? Their verdicts paired by test image and by seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.evaluation import Evaluation
from excite.evaluation.comparison import compare

Pairs = Sequence[tuple[Evaluation, Evaluation]]  # per seed: the baseline's evaluation and the arm's


@dataclass(frozen=True)
class PairedDifference:
    """Accuracy of the arm minus accuracy of the baseline, the mean over the seeds."""

    difference: float
    interval: tuple[float, float]  # 95%
    seeds: int

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return f"{100 * self.difference:+.2f} points ({low:+.2f} to {high:+.2f}), {self.seeds} seeds"


def paired_difference(pairs: Pairs, on: str = "worst") -> PairedDifference:
    """The mean difference on `"clean"`, `"worst"` or an attack, with an interval for the luck of seeds and images.

    With one seed it is `evaluation.comparison.compare`: a bootstrap over the test images, which says nothing about
    another training. With S seeds it is Student's interval with S − 1 degrees of freedom, around the mean of the
    per-seed differences. Its standard error counts the seeds, and where all seeds were judged on the same n images
    also those, for then the luck of the images is in every difference and does not show in their spread. With gain
    d(s, i) of seed s on image i, −1, 0 or 1, its square is

        V_seeds / S + max(0, V_images − V_rest / S) / n

    V_seeds and V_images being the variances of the means of d over images and over seeds, and V_rest the mean square
    of what remains of d: the unbiased estimate for two crossed samples. With so few seeds as usual the interval is
    wide; that is what they can say.
    """
    if not pairs:
        raise InputError("There is no seed at which both the baseline and the arm were evaluated; evaluate both.")
    if len(pairs) == 1:
        comparison = compare(*pairs[0], on)
        return PairedDifference(comparison.difference, comparison.interval, 1)
    gains = [_gains(baseline, arm, on) for baseline, arm in pairs]
    differences = [one.mean() for one in gains]
    mean, seeds = float(np.mean(differences)), len(pairs)
    variance = float(np.var(differences, ddof=1)) / seeds
    if len({baseline.examples for baseline, _ in pairs}) == 1:
        variance += _variance_of_images(np.stack(gains))
    half = _student_quantile(seeds - 1) * variance**0.5
    return PairedDifference(mean, (mean - half, mean + half), seeds)


def _gains(baseline: Evaluation, arm: Evaluation, on: str) -> NDArray[np.float64]:
    """Per image: 1 where only the arm is right, −1 where only the baseline is, else 0."""
    if baseline.examples != arm.examples:
        raise InputError("The baseline and the arm were judged on different images; evaluate both on the same ones.")
    gains: NDArray[np.float64] = (arm.outcomes(on).double() - baseline.outcomes(on).double()).numpy()
    return gains


def _variance_of_images(gains: NDArray[np.float64]) -> float:
    """What the choice of the images adds to the variance of the mean of `gains`, seeds × images."""
    seeds, images = gains.shape
    over_seeds = gains.mean(axis=0)
    rest = gains - over_seeds - gains.mean(axis=1, keepdims=True) + gains.mean()
    rest_variance = (rest**2).sum() / ((seeds - 1) * (images - 1))
    return float(max(0.0, over_seeds.var(ddof=1) - rest_variance / seeds) / images)


def _student_quantile(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
