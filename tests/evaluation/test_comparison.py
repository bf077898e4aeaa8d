"""Paired comparisons against scipy, against drawing the examples one by one, and against known splits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch import Tensor

from excite.errors import InputError
from excite.evaluation import AttackResult, Cost, Evaluation, compare
from excite.evaluation.comparison import mcnemar, paired_bootstrap


def evaluation(correct: Tensor, robust: Tensor, examples: str = "these") -> Evaluation:
    return Evaluation(correct, {"pgd": AttackResult("PGD", robust, ())}, (), Cost(), examples)


@settings(max_examples=50)
@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_the_exact_binomial_test(only_first: int, only_second: int) -> None:
    if only_first + only_second > 0:
        expected = binomtest(only_first, only_first + only_second, 0.5).pvalue
        assert mcnemar(only_first, only_second) == pytest.approx(min(1.0, expected), rel=1e-9)
    else:
        assert mcnemar(only_first, only_second) == 1.0


def test_mcnemar_survives_thousands_of_disagreements() -> None:
    assert 0 < mcnemar(2400, 2600) < 0.01


def test_bootstrap_equals_drawing_examples() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.random(300) < 0.5, rng.random(300) < 0.6
    drawn = rng.integers(0, 300, (4000, 300))
    slow = np.quantile(two[drawn].mean(1) - one[drawn].mean(1), [0.025, 0.975])
    fast = paired_bootstrap(int((one & ~two).sum()), int((two & ~one).sum()), 300, rng=rng)
    np.testing.assert_allclose(fast, slow, atol=0.015)


def test_compare_counts_pairs() -> None:
    one = torch.tensor([True, True, True, False, False])
    two = torch.tensor([True, False, True, True, True])
    result = compare(evaluation(one, one), evaluation(two, two), "pgd")
    assert (result.only_first, result.only_second, result.total) == (1, 2, 5)
    assert result.difference == pytest.approx(0.2)
    assert result.interval[0] <= 0.2 <= result.interval[1]
    assert "+20.00 points" in str(result)


def test_identical_models_do_not_differ() -> None:
    same = evaluation(torch.ones(9, dtype=torch.bool), torch.ones(9, dtype=torch.bool))
    result = compare(same, same)
    assert (result.difference, result.interval, result.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_different_examples_cannot_be_compared() -> None:
    one = torch.ones(3, dtype=torch.bool)
    with pytest.raises(InputError, match="same ones"):
        compare(evaluation(one, one), evaluation(one, one, "others"))
    with pytest.raises(InputError, match="clean, pgd, worst"):
        compare(evaluation(one, one), evaluation(one, one), "square")
