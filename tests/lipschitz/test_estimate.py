import json
import math

import pytest

from excite.errors import InputError
from excite.lipschitz.estimate import LipschitzEstimate

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
