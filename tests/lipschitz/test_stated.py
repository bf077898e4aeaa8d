"""A stated L gives its rates and claims nothing else."""

import math

import pytest

from excite.errors import InputError
from excite.lipschitz import estimate_lipschitz
from excite.lipschitz.stated import Stated


def test_stated_returns_the_given_number() -> None:
    found = estimate_lipschitz(None, "stated", constant=3.526, source="the paper's Table 1")
    assert (found.constant, found.interval) == (3.526, (3.526, 3.526))
    assert found.learning_rate(2) == pytest.approx(2 / 3.526)
    assert not found.identified
    assert "stated by the paper's Table 1" in str(found)


@pytest.mark.parametrize("constant", [0.0, -1.0, math.nan, math.inf])
def test_refuses_a_non_positive_number(constant: float) -> None:
    with pytest.raises(InputError, match="positive and finite"):
        Stated(constant)
