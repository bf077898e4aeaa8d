"""Block maxima, and L for every (M, N) and initial shape."""

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.extremes.heat_map import HeatMap, Reading, heat_map, local_maxima, secant_maxima, unmatched_maxima

Floats = NDArray[np.float64]


def distances(seed: int, n: int = 30) -> Floats:
    points = np.random.default_rng(seed).normal(size=(n, 4))
    return np.asarray(np.linalg.norm(points[:, None] - points, axis=-1))


def test_the_heat_map_has_a_cell_for_every_pair_and_shape() -> None:
    cells = heat_map(secant_maxima(distances(4)), n_maxima=(10, 20), n_points=(6, 10, 20), initial_shapes=(0.1, 1.0))
    assert cells.p_values.shape == cells.constants.shape == cells.identified.shape == (2, 3, 2)
    assert (cells.constants > 0).all()
    assert ((cells.p_values >= 0) & (cells.p_values <= 1)).all()
    alone = heat_map(secant_maxima(distances(4)), n_maxima=(20,), n_points=(10,), initial_shapes=(0.1, 1.0))
    assert np.array_equal(alone.p_values[0, 0], cells.p_values[1, 1])
    assert json.dumps(cells.to_json(), allow_nan=False)


def test_a_pair_passes_with_p_values_on_both_sides_of_alpha() -> None:
    p_values = np.array([[[0.9, 0.1], [0.9, 0.8]], [[0.2, 0.1], [0.5, 0.6]]])
    cells = HeatMap((10, 20), (4, 6), (1.0, 5.0), p_values, np.ones((2, 2, 2)), np.ones((2, 2, 2), dtype=bool))
    assert cells.passing(0.55) == [(0, 0), (1, 1)]
    assert cells.best(1, 1) == 1


def test_one_trace_gives_one_l_whichever_grid_it_stands_in() -> None:
    trace_distances = distances(5, 60)
    whole = heat_map(secant_maxima(trace_distances), n_maxima=(25, 55), n_points=(20, 40), initial_shapes=(1.0, 5.0))
    part = heat_map(secant_maxima(trace_distances), n_maxima=(55,), n_points=(20,), initial_shapes=(1.0, 5.0))
    assert np.array_equal(whole.constants[1, 0], part.constants[0, 0])


def test_where_the_endpoint_is_a_bound_the_scale_is_another_number() -> None:
    slopes = np.exp(np.random.default_rng(6).normal(size=4000))
    grid: dict[str, Any] = {"n_maxima": (100,), "n_points": (40,), "initial_shapes": (5.0,)}
    endpoint = heat_map(local_maxima(slopes), Reading("endpoint"), **grid)
    scale = heat_map(local_maxima(slopes), Reading("scale"), **grid)
    assert not endpoint.identified.any()
    assert (scale.constants != endpoint.constants).all()
    assert np.array_equal(scale.p_values, endpoint.p_values)


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
