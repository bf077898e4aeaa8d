"""The paired difference over seeds: by hand, and whether its interval covers what it says."""

from collections.abc import Callable

import numpy as np
import pytest

from excite.errors import InputError
from excite.evaluation import Evaluation
from excite.evaluation.comparison import compare
from excite.evaluation.paired import paired_difference

ATTACK = "PGD_20 ε=1/255"
Evaluated = Callable[..., Evaluation]
STUDENT = {1: 12.706205, 2: 4.302653}  # the quantiles at 0.975, from tables


def test_one_seed_is_the_comparison_of_two_models(evaluated: Evaluated) -> None:
    baseline, arm = evaluated(95, 40), evaluated(95, 55)
    found = paired_difference([(baseline, arm)], ATTACK)
    assert found.difference == pytest.approx(0.15)
    assert found.interval == compare(baseline, arm, ATTACK).interval


def test_the_interval_by_hand(evaluated: Evaluated) -> None:
    """Gains of two seeds on four images: (1, 1, 0, 0) and (1, 1, 1, −1)."""
    nothing = evaluated(4, [False, False, False, True], total=4)
    pairs = [
        (nothing, evaluated(4, [True, True, False, True], total=4)),
        (nothing, evaluated(4, [True, True, True, False], total=4)),
    ]
    found = paired_difference(pairs, ATTACK)
    # Means over images ½ and ½: V_seeds = 0. Means over seeds 1, 1, ½, −½: V_images = ½.
    # Rest ±½ on the last two images: squares sum to 1, over 1 · 3 degrees of freedom. (½ − ⅓/2)/4 = 1/12.
    half = STUDENT[1] * (1 / 12) ** 0.5
    assert found.difference == pytest.approx(0.5)
    assert found.interval == pytest.approx((0.5 - half, 0.5 + half))
    assert found.seeds == 2


def test_images_of_their_own_leave_students_interval(evaluated: Evaluated) -> None:
    robust = (45, 50, 61)
    pairs = [
        (evaluated(100, 40, examples=f"{seed}"), evaluated(100, right, examples=f"{seed}"))
        for seed, right in enumerate(robust)
    ]
    half = STUDENT[2] * np.std([0.05, 0.1, 0.21], ddof=1) / 3**0.5
    assert paired_difference(pairs, ATTACK).interval == pytest.approx((0.12 - half, 0.12 + half))


def test_seeds_that_disagree_widen_the_interval(evaluated: Evaluated) -> None:
    def pairs(*robust: int) -> list[tuple[Evaluation, Evaluation]]:
        return [(evaluated(1000, 400, total=1000), evaluated(1000, right, total=1000)) for right in robust]

    together, apart = paired_difference(pairs(500, 500, 500), ATTACK), paired_difference(pairs(350, 500, 650), ATTACK)
    assert together.difference == pytest.approx(apart.difference) == pytest.approx(0.1)
    assert together.interval[0] > 0
    assert apart.interval[0] < 0
    assert "+10.00 points" in str(together)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_interval_covers_the_truth_as_often_as_it_says(evaluated: Evaluated, seeds: int) -> None:
    """Trainings whose accuracies differ by luck (s.d. 3 points), judged on 200 images, harder and easier ones."""
    rng = np.random.default_rng(seeds)
    covered = 0
    for _ in range(trials := 200):
        hardness = rng.normal(scale=0.2, size=200)
        pairs = []
        for _ in range(seeds):
            luck = rng.normal(scale=0.03, size=2) + np.array([0.4, 0.5])
            first, second = rng.random((2, 200)) < np.clip(luck[:, None] + hardness, 0, 1)
            pairs.append((evaluated(200, first.tolist(), total=200), evaluated(200, second.tolist(), total=200)))
        low, high = paired_difference(pairs, ATTACK).interval
        covered += low <= 0.098 <= high  # clipping takes 0.002 of the 0.1
    assert covered >= 0.9 * trials  # 95% less the luck of 200 trials: 3 standard deviations


def test_different_images_cannot_be_paired(evaluated: Evaluated) -> None:
    with pytest.raises(InputError, match="on the same ones"):
        paired_difference([(evaluated(90, 40), evaluated(90, 40, examples="others"))] * 2, ATTACK)


def test_nothing_to_pair() -> None:
    with pytest.raises(InputError, match="evaluate both"):
        paired_difference([], ATTACK)
