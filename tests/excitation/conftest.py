"""Traces made from vectors, so that what is read from them can be computed the plain way too."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from excite.trace import Trace

Floats = NDArray[np.float64]


@pytest.fixture
def trace_of() -> Callable[[Floats, Floats, Floats], Trace]:
    """(parameters, gradients, rates) of T moments -> their trace, the first moment being the origin too."""

    def make(parameters: Floats, gradients: Floats, rates: Floats) -> Trace:
        points = np.concatenate([parameters[:1], parameters])
        slopes = np.concatenate([np.zeros_like(gradients[:1]), gradients])
        return Trace(
            squared_gradient_distances=((slopes[:, None] - slopes) ** 2).sum(-1),
            squared_parameter_distances=((points[:, None] - points) ** 2).sum(-1),
            steps=np.arange(1, len(parameters) + 1),
            learning_rates=rates,
        )

    return make


@pytest.fixture(params=range(5))
def walk(request: pytest.FixtureRequest) -> Floats:
    """Twelve points of a random walk in space."""
    return np.random.default_rng(request.param).normal(size=(12, 3)).cumsum(axis=0)
