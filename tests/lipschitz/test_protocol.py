"""What an estimator is to everybody else, and what its answer says."""

import json
import math

import numpy as np
import pytest

from excite.errors import InputError
from excite.lipschitz.protocol import LipschitzEstimate, Recording
from excite.trace import Trace


def test_a_recording_counts_what_estimators_can_use() -> None:
    trace = Trace(
        np.zeros((4, 4)),
        np.zeros((4, 4)),
        steps=np.arange(3),
        slopes=np.ones(5),
        curvatures=np.array([1.0, np.nan, 2.0, 0.0]),
    )
    found = Recording.of(trace)
    assert (found.moments, found.input_gradients, found.slopes, found.curvatures) == (3, False, 5, 2)
    assert found.says == "The trace holds"
    assert Recording(3).says == "The run will record"


ESTIMATE = LipschitzEstimate(
    constant=4.0,
    interval=(3.5, 5.0),
    method="edge",
    identified=True,
    basis="6 runs",
    p_value=0.4,
    details={"runs": [1]},
)


def test_learning_rates() -> None:
    assert ESTIMATE.learning_rate() == 0.25
    assert ESTIMATE.learning_rate(2) == 0.5


def test_it_prints_its_conclusion() -> None:
    assert str(ESTIMATE) == "L = 4 (3.5 to 5) by edge, p = 0.4; identified: 6 runs. 1/L = 0.25, 2/L = 0.5."


def test_json_and_back() -> None:
    assert LipschitzEstimate.from_json(json.loads(json.dumps(ESTIMATE.to_json()))) == ESTIMATE


@pytest.mark.parametrize("constant", [0.0, -1.0, math.nan, math.inf])
def test_a_constant_that_gives_no_rate_is_refused(constant: float) -> None:
    with pytest.raises(InputError, match="positive and finite"):
        LipschitzEstimate(constant, (0, 1), "edge", True, "")
