"""Blocks are drawn as Algorithm 1, and as its released code, describe."""

import numpy as np
import pytest
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.extremes.blocks import local_maxima, secant_maxima, unmatched_maxima

Floats = NDArray[np.float64]


def distances(seed: int, n: int = 30) -> Floats:
    points = np.random.default_rng(seed).normal(size=(n, 4))
    return np.asarray(np.linalg.norm(points[:, None] - points, axis=-1))


def test_a_block_pairs_distinct_moments() -> None:
    slopes = distances(0)
    np.fill_diagonal(slopes, 1e9)  # a moment paired with itself would show
    every = np.unique(slopes[np.triu_indices(30, 1)])
    maxima = secant_maxima(slopes)(500, 30, np.random.default_rng(0))
    assert maxima.shape == (500,)
    assert np.isin(maxima, every).all()
    single = secant_maxima(slopes)(5000, 2, np.random.default_rng(0))
    assert len(np.unique(single)) == len(every)


def test_a_block_of_all_local_slopes_is_their_maximum() -> None:
    slopes = np.random.default_rng(1).random(40)
    assert (local_maxima(slopes)(5, 80, np.random.default_rng(0)) == slopes.max()).all()
    assert np.isin(local_maxima(slopes)(50, 6, np.random.default_rng(0)), slopes).all()


def test_unmatched_blocks_mix_moments_as_the_released_code_does() -> None:
    gradients, parameters = distances(2), distances(3)
    matched = np.divide(gradients, parameters, out=np.zeros_like(gradients), where=parameters > 0)
    maxima = unmatched_maxima(gradients, parameters)(200, 30, np.random.default_rng(0))
    assert maxima.max() > matched.max()  # a large rise over another pair's small run


def test_a_block_larger_than_the_trace_is_refused() -> None:
    with pytest.raises(InputError, match="holds 30 values; a block needs 40"):
        secant_maxima(distances(0))(3, 40, np.random.default_rng(0))
