"""Traces made from vectors, so that what is read from them can be computed the plain way too."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from excite.trace import Recorder, Trace

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


@pytest.fixture
def wander() -> Callable[[Literal["exact", "sketch"]], Trace]:
    """Twenty steps at nearly right angles to each other, 3/100 of each straight on, in 20,000 dimensions."""

    def trace(storage: Literal["exact", "sketch"]) -> Trace:
        generator = torch.Generator().manual_seed(0)
        onward = torch.randn(1, 20_000, generator=generator)
        model = torch.nn.Linear(20_000, 1, bias=False)
        recorder = Recorder(
            model, probe=(torch.zeros(1, 20_000), torch.zeros(1).long()), gradient="probe", storage=storage
        )
        for _ in range(20):
            with torch.no_grad():
                model.weight += 0.03 * onward + torch.randn(1, 20_000, generator=generator)
            recorder.record()
        return recorder.trace

    return trace
