"""Every (M, N) and initial shape has a cell, and the paper's heuristic picks among them."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excite.lipschitz.extremes.blocks import local_maxima, secant_maxima
from excite.lipschitz.extremes.heat_map import HeatMap, Reading, heat_map

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
