"""Secants between moments and slopes of steps, read from a trace."""

import numpy as np
import pytest

from excite.errors import InputError
from excite.lipschitz.slopes import local_slopes, secants
from excite.trace import Trace


def test_secants_are_ratios_of_distances_and_zero_where_nothing_moved() -> None:
    parameters = np.array([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])
    gradients = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 10.0], [2.0, 10.0]])
    trace = Trace(
        squared_gradient_distances=((gradients[:, None] - gradients) ** 2).sum(-1),
        squared_parameter_distances=((parameters[:, None] - parameters) ** 2).sum(-1),
        steps=np.arange(3),
    )
    expected = np.array([[0, 2, np.hypot(1, 10) / 5], [2, 0, 0], [np.hypot(1, 10) / 5, 0, 0]])
    np.testing.assert_allclose(secants(trace), expected)
    with pytest.raises(InputError, match="no local slopes"):
        local_slopes(trace)
