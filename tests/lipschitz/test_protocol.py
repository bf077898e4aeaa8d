"""What an estimator is to everybody else, and what its answer says."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

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
    found = str(replace(ESTIMATE, method="local"))
    assert found == "L = 4 (3.5 to 5) by local, p = 0.4; identified: 6 runs. 1/L = 0.25, 2/L = 0.5."


def test_an_edge_of_an_earlier_version_says_which_definition_it_has() -> None:
    assert "half" in str(ESTIMATE)


CERTIFIED = LipschitzEstimate(8.0, (3.0, 8.0), "edge", True, "from 10 short runs", convergence=(0.999, 0.97))


def test_an_upper_bound_says_first_at_which_rates_to_train() -> None:
    assert str(CERTIFIED).startswith("Train at 0.125 (1/L) or up to 0.25 (2/L): 97% of trainings converge there. L ≤ 8")
    assert "not identified" in str(replace(CERTIFIED, identified=False))
    assert "Train at" not in str(replace(CERTIFIED, identified=False))


def test_reliable_means_identified_or_stated() -> None:
    assert CERTIFIED.reliable
    assert not replace(CERTIFIED, identified=False).reliable
    assert replace(CERTIFIED, identified=False, method="stated").reliable


@pytest.mark.parametrize("estimate", [ESTIMATE, CERTIFIED])
def test_json_and_back(estimate: LipschitzEstimate) -> None:
    assert LipschitzEstimate.from_json(json.loads(json.dumps(estimate.to_json()))) == estimate


def test_an_estimate_of_an_earlier_version_can_be_read() -> None:
    stored = ESTIMATE.to_json()
    del stored["convergence"]
    assert LipschitzEstimate.from_json(stored) == ESTIMATE


@pytest.mark.parametrize("constant", [0.0, -1.0, math.nan, math.inf])
def test_refuses_a_non_positive_constant(constant: float) -> None:
    with pytest.raises(InputError, match="positive and finite"):
        LipschitzEstimate(constant, (0, 1), "edge", True, "")


EDGE = LipschitzEstimate(
    4.0,
    (3.0, 5.0),
    "edge",
    True,
    "a test",
    details={"rates": [0.1, 0.4, 0.8], "converged": [True, True, False], "curve": [(0.1, 0.99), (0.5, 0.5), (1, 0.1)]},
)


def test_plot_marks_rates_and_runs(tmp_path: Path) -> None:
    axes = EDGE.plot()
    lines = {line.get_label(): np.asarray(line.get_xdata()).tolist() for line in axes.lines}
    assert lines["1/L"] == [0.25, 0.25]
    assert lines["2/L"] == [0.5, 0.5]
    assert (lines["converged"], lines["did not converge"]) == ([0.1, 0.4], [0.8])
    assert isinstance(axes.figure, Figure)
    axes.figure.savefig(tmp_path / "edge.png")
    assert (tmp_path / "edge.png").stat().st_size > 1000


def test_plot_on_given_axes() -> None:
    axes = LipschitzEstimate(4.0, (0.0, 5.0), "stated", True, "a test").plot()
    assert LipschitzEstimate(2.0, (1.0, 5.0), "stated", True, "a test").plot(axes) is axes
    assert [line.get_label() for line in axes.lines] == ["1/L", "2/L"] * 2
