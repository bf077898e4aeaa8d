"""The paper's optimiser finds a clear maximum, and on the Gumbel ridge stops where its start makes it stop."""

import json

import numpy as np
import pytest
from scipy.stats import weibull_min

from excite.lipschitz.extremes.stopping_point import stopping_point


def test_it_finds_the_parameters_of_a_sampled_law() -> None:
    maxima = -weibull_min.rvs(3.0, loc=-8.0, scale=2.0, size=4000, random_state=0)
    found = stopping_point(maxima, 2.0)
    assert found.endpoint == pytest.approx(8, rel=0.05)
    assert found.scale == pytest.approx(2, rel=0.15)
    assert found.shape == pytest.approx(3, rel=0.15)
    assert found.p_value > 0.05


def test_without_an_endpoint_the_answer_is_the_start_s() -> None:
    maxima = np.random.default_rng(0).gumbel(size=200)
    scales = [stopping_point(maxima, start).scale for start in (5.0, 20.0, 100.0)]
    assert max(scales) > 2 * min(scales)
    assert json.dumps(stopping_point(maxima, 5.0).to_json(), allow_nan=False)


def test_a_start_from_which_it_stops_nowhere_is_no_crash() -> None:
    stopped = stopping_point(np.random.default_rng(0).gumbel(size=40), 0.004)
    assert not stopped.finite
    assert stopped.p_value == 0
