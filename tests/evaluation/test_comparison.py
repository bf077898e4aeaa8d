"""Paired comparisons, of two models and over seeds: by hand, by simulation, against the binomial sum."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from excite.errors import InputError
from excite.evaluation import AttackResult, Cost, Evaluation
from excite.evaluation.comparison import compare, holm, mcnemar, over_seeds, paired_difference
from excite.evaluation.result import Z95


def evaluation(correct: NDArray[np.bool_], robust: NDArray[np.bool_], examples: str = "these") -> Evaluation:
    return Evaluation(correct, {"pgd": AttackResult("PGD", robust, ())}, (), Cost(), examples)


@settings(max_examples=50)
@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_counts_the_tosses_as_uneven(only_first: int, only_second: int) -> None:
    tosses = only_first + only_second
    tail = sum(math.comb(tosses, heads) for heads in range(min(only_first, only_second) + 1))
    assert mcnemar(only_first, only_second) == pytest.approx(min(1.0, 2 * tail / 2**tosses), rel=1e-9)


def test_mcnemar_survives_thousands_of_disagreements() -> None:
    assert 0 < mcnemar(2400, 2600) < 0.01


@pytest.mark.parametrize("chances", [(0.02, 0.02), (0.01, 0.05), (0.1, 0.3)])
def test_the_interval_covers(chances: tuple[float, float]) -> None:
    """Studies of 100 examples, of which the first and the second model alone get such shares right."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(100, [*chances, 1 - sum(chances)], size=1000)
    covered = 0
    for only_first, only_second, _ in counts:
        numbers = np.arange(100)
        one, two = numbers < only_first, (numbers >= 50) & (numbers < 50 + only_second)
        low, high = compare(evaluation(one, one), evaluation(two, two)).interval
        covered += low <= chances[1] - chances[0] <= high
    assert covered / 1000 >= 0.93


def test_compare_counts_pairs() -> None:
    one = np.array([True, True, True, False, False])
    two = np.array([True, False, True, True, True])
    result = compare(evaluation(one, one), evaluation(two, two), "pgd")
    assert (result.only_first, result.only_second, result.total) == (1, 2, 5)
    assert result.difference == pytest.approx(0.2)
    half = Z95 * ((5 / 7 - 1 / 49) / 7) ** 0.5  # of −1, 1, 1, 0, 0, and of the 1 and −1 that are added
    assert result.interval == pytest.approx((1 / 7 - half, 1 / 7 + half))
    assert "+20.00 points" in str(result)


def test_identical_models_do_not_differ() -> None:
    same = evaluation(np.ones(9, dtype=bool), np.ones(9, dtype=bool))
    result = compare(same, same)
    assert (result.difference, result.p_value) == (0.0, 1.0)
    assert result.interval == pytest.approx((-STANDARD, STANDARD))


STANDARD = 1.959964 * (2 / 11) ** 0.5 / 11**0.5  # nine examples without a difference, one each way added


def test_different_examples_cannot_be_compared() -> None:
    one = np.ones(3, dtype=bool)
    with pytest.raises(InputError, match="same"):
        compare(evaluation(one, one), evaluation(one, one, "others"))
    with pytest.raises(InputError, match="pgd"):
        compare(evaluation(one, one), evaluation(one, one), "square")


def test_different_attacks_cannot_be_compared() -> None:
    right = np.ones(3, dtype=bool)
    first = evaluation(right, right)
    weaker = replace(first, attacks={"pgd": AttackResult("PGD, half the radius", right, ())})
    for on in ("pgd", "worst"):
        with pytest.raises(InputError, match="half the radius"):
            compare(first, weaker, on)
    one_more = replace(first, attacks={**first.attacks, "square": AttackResult("SQUARE", right, ())})
    with pytest.raises(InputError, match="same"):
        compare(first, one_more)
    for on in ("clean", "pgd"):
        assert compare(first, one_more, on).difference == 0.0


ATTACK = "PGD_20 ε=1/255"
Evaluated = Callable[..., Evaluation]
STUDENT = {2: 4.302653}  # the quantiles at 0.975, from tables


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
    # Means over images ½ and ½: V_seeds = 0. Means over seeds 1, 1, ½, −½: V_mean = ½.
    # Rest ±½ on the last two images: squares sum to 1, over 1 · 3 degrees of freedom: V_shared = (½ − ⅓/2)/4 = 1/12.
    # The floor is more: 1, 1, ½, −½, 1, −1 have the mean ⅓ and the mean square ¾: V_images = (¾ − 1/9)/6.
    half = Z95 * ((3 / 4 - 1 / 9) / 6) ** 0.5
    assert found.difference == pytest.approx(0.5)
    assert found.interval == pytest.approx((0.5 - half, min(1.0, 0.5 + half)))
    assert found.seeds == 2


def test_images_that_several_seeds_share_widen_the_interval() -> None:
    """Two seeds on the same eight images, and a third one on others: 4, 4 and 6 of 8 gain."""
    shared = np.array([[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0, 0]], dtype=float)
    alone = np.array([[1, 1, 1, 1, 1, 1, 0, 0]], dtype=float)
    # Means ½, ½, ¾: V_seeds = 1/48. Means over the seeds that share: 1, 1, 1, ½, ½, 0, 0, 0: V_mean = 1.5/7.
    # Rest ±½ on two images, over 1 · 7 degrees of freedom: V_rest = 1/7. Two of three seeds share: a weight of (2/3)².
    of_shared = (2 / 3) ** 2 * (1.5 / 7 - 1 / 7 / 2) / 8
    half = (STUDENT[2] ** 2 / 48 / 3 + Z95**2 * of_shared) ** 0.5
    assert over_seeds([shared, alone]).interval == pytest.approx((7 / 12 - half, 7 / 12 + half))


def test_shared_images_whose_gains_cancel_add_nothing() -> None:
    """Each of nine images gains in one of three seeds: 4, 2 and 3 of them."""
    gains = np.repeat(np.eye(3), [4, 2, 3], axis=1)
    half = STUDENT[2] * (1 / 81 / 3) ** 0.5
    assert over_seeds([gains]).interval == pytest.approx((1 / 3 - half, 1 / 3 + half))


def test_seeds_apart_leave_students_interval(evaluated: Evaluated) -> None:
    robust = (45, 50, 61)
    pairs = [
        (evaluated(100, 40, examples=f"{seed}"), evaluated(100, right, examples=f"{seed}"))
        for seed, right in enumerate(robust)
    ]
    half = STUDENT[2] * np.std([0.05, 0.1, 0.21], ddof=1) / 3**0.5
    assert paired_difference(pairs, ATTACK).interval == pytest.approx((0.12 - half, 0.12 + half))


def test_seeds_that_agree_by_chance_leave_the_noise_of_their_images(evaluated: Evaluated) -> None:
    """Two seeds judged on 200 images each, of which 9 more are right: +4.5 points in both, and yet no certainty."""
    pairs = [(evaluated(190, 100, total=200, examples=e), evaluated(190, 109, total=200, examples=e)) for e in "ab"]
    found = paired_difference(pairs, ATTACK)
    one_seed = Z95 * np.std([1] * 10 + [0] * 191 + [-1]) / 202**0.5
    low, high = found.interval
    assert found.difference == pytest.approx(0.045)
    assert (high - low) / 2 == pytest.approx(one_seed / 2**0.5)


def test_seeds_that_disagree_widen_the_interval(evaluated: Evaluated) -> None:
    def pairs(*robust: int) -> list[tuple[Evaluation, Evaluation]]:
        return [(evaluated(1000, 400, total=1000), evaluated(1000, right, total=1000)) for right in robust]

    together, apart = paired_difference(pairs(500, 500, 500), ATTACK), paired_difference(pairs(350, 500, 650), ATTACK)
    assert together.difference == pytest.approx(apart.difference) == pytest.approx(0.1)
    assert together.interval[0] > 0
    assert apart.interval[0] < 0
    assert "+10.00 points" in str(together)


Study = tuple[int, bool, float, float]  # seeds, whether on the same images, effect, luck of a training (s.d.)
STUDIES: list[Study] = list(itertools.product((2, 3, 5), (True, False), (0.0, 0.1), (0.0, 0.03)))


def covered(study: Study, *, studies: int) -> float:
    """In how many of so many simulated studies the interval holds the truth: 200 images, harder and easier ones, of
    which the arm is better at the easier half and worse at the other, besides its effect."""
    seeds, same, effect, luck = study
    rng = np.random.default_rng([seeds, same, round(100 * effect), round(100 * luck)])

    def images(number: int) -> NDArray[np.float64]:
        return rng.normal(scale=0.2, size=number)

    def chances(hardness: NDArray[np.float64], trainings: int) -> NDArray[np.float64]:
        """Of the baseline and the arm to be right, per training and image."""
        level = 0.4 + rng.normal(scale=luck, size=(2, trainings, 1)) + np.array([0, effect])[:, None, None]
        chance: NDArray[np.float64] = level + hardness + np.array([0, 0.1])[:, None, None] * np.sign(hardness)
        return np.clip(chance, 0, 1)

    before, after = chances(images(200_000)[:, None], 200_000) if luck else chances(images(200_000), 1)
    truth, hits = float((after - before).mean()), 0
    for _ in range(studies):
        hardness = images(200) if same else images(200 * seeds).reshape(seeds, 200)
        before, after = rng.random((2, seeds, 200)) < chances(hardness, seeds)
        gains = after.astype(float) - before
        low, high = over_seeds([gains] if same else [row[None] for row in gains]).interval
        hits += low <= truth <= high
    return hits / studies


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_interval_over_seeds_covers(seeds: int) -> None:
    """The same simulation, shorter, the kinds of study together: 95% less three standard deviations of the luck."""
    found = [covered(study, studies=60) for study in STUDIES if study[0] == seeds]
    assert np.mean(found) >= 0.95 - 3 * (0.95 * 0.05 / (60 * len(found))) ** 0.5


@pytest.mark.slow
def test_the_interval_covers_in_every_kind_of_study() -> None:
    found = {study: covered(study, studies=2000) for study in STUDIES}
    for (seeds, same, effect, luck), share in found.items():
        images = "the same" if same else "different"
        print(f"{seeds} seeds, {images} images, effect {effect:.1f}, luck {luck:.2f}: {share:.1%} covered")
    assert min(found.values()) >= 0.95 - 2 * (0.95 * 0.05 / 2000) ** 0.5
    assert max(found.values()) <= 0.999  # wider than needed would be no answer either


def test_the_p_value_is_that_of_students_test_where_seeds_decide(evaluated: Evaluated) -> None:
    """Three seeds with different images gain 5, 10 and 21 points: t = 0.12 / (0.0819 / √3), 2 degrees of freedom."""
    pairs = [
        (evaluated(100, 40, examples=f"{seed}"), evaluated(100, right, examples=f"{seed}"))
        for seed, right in enumerate((45, 50, 61))
    ]
    t = 0.12 / (np.std([0.05, 0.1, 0.21], ddof=1) / 3**0.5)
    assert paired_difference(pairs, ATTACK).p_value == pytest.approx(1 - t / (t**2 + 2) ** 0.5)  # two-sided, exact


@settings(max_examples=30)
@given(st.lists(st.integers(30, 60), min_size=1, max_size=4))
def test_the_p_value_is_below_5_percent_where_the_interval_excludes_zero(robust: list[int]) -> None:
    right = np.arange(100)
    pairs = [(evaluation(right < 95, right < 40), evaluation(right < 95, right < number)) for number in robust]
    found = paired_difference(pairs, "pgd")
    low, high = found.interval
    if len(robust) > 1 and min(abs(low), abs(high)) > 1e-9:
        assert (found.p_value < 0.05) == (low > 0 or high < 0)
    assert 0 < found.p_value <= 1


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_rejects_what_its_steps_reject(p_values: list[float]) -> None:
    """The definition: compare the smallest p with 5% / n, the next with 5% / (n − 1), until one is larger."""
    rejected = set()
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[number] * (len(p_values) - rank) >= 0.05:
            break
        rejected.add(number)
    assert {number for number, p in enumerate(holm(p_values)) if p < 0.05} == rejected


def test_no_interval_goes_beyond_what_shares_can_differ_by(evaluated: Evaluated) -> None:
    pairs = [(evaluated(50, 0), evaluated(50, 50)), (evaluated(50, 50), evaluated(50, 0))]
    assert paired_difference(pairs, ATTACK).interval == (-1.0, 1.0)
    assert over_seeds([np.array([[1.0], [0.0]])]).interval == (-1.0, 1.0)
    low, high = compare(evaluated(1, 0, total=1), evaluated(1, 1, total=1), ATTACK).interval
    assert -1 < low < high == 1


def test_different_images_cannot_be_paired(evaluated: Evaluated) -> None:
    with pytest.raises(InputError, match="same"):
        paired_difference([(evaluated(90, 40), evaluated(90, 40, examples="others"))] * 2, ATTACK)


def test_nothing_to_pair() -> None:
    with pytest.raises(InputError, match="baseline"):
        paired_difference([], ATTACK)
