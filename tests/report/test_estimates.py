"""Estimates of L side by side, and the theorem's conditions along a known descent."""

from dataclasses import replace

import numpy as np
import pytest

from excite.lipschitz.protocol import LipschitzEstimate
from excite.report import estimates_table, excitation_facts, excitation_table
from excite.trace import Trace


def test_methods_side_by_side_and_why_one_has_no_answer() -> None:
    found: dict[str, LipschitzEstimate | str] = {
        "local": LipschitzEstimate(4.0, (3.0, 5.0), "local", False, "25 maxima", p_value=0.5),
        "curvature": "The trace holds no curvatures.",
    }
    lines = estimates_table(found).splitlines()
    assert lines[2].split() == [
        "local",
        "4",
        "3",
        "to",
        "5",
        "0.25",
        "0.5",
        "0.5",
        *["no:", "not", "identified", "by", "the", "data"],
    ]
    assert lines[-2:] == ["local: 25 maxima.", "curvature: The trace holds no curvatures."]


def test_estimates_that_are_each_sure_and_disagree_are_said_to() -> None:
    large = LipschitzEstimate(6.8, (0.6, 6.9), "curvature", True, "a Hessian")
    small = LipschitzEstimate(0.5, (0.45, 0.55), "epochs", True, "25 maxima")
    shown = estimates_table({"curvature": large, "epochs": small})
    assert "curvature, epochs disagree" in " ".join(shown.split())
    assert "edge" not in shown
    for identified in (True, False):
        edge = LipschitzEstimate(20.0, (10.0, 40.0), "edge", identified, "8 runs")
        shown = estimates_table({"curvature": large, "epochs": small, "edge": edge})
        assert ("Prefer edge" in " ".join(shown.split())) == identified
    vague = LipschitzEstimate(0.5, (0.45, 0.55), "epochs", False, "25 maxima")
    assert "disagree" not in estimates_table({"curvature": large, "epochs": vague})


ESTIMATE = LipschitzEstimate(4.0, (4.0, 4.0), "edge", True, "known")


def straight_descent(rate: float, moments: int = 5) -> Trace:
    """Gradient descent on ½ · 4 · θ² from θ = 1: θᵏ = (1 − 4η)ᵏ, gradients 4θᵏ."""
    theta = (1 - 4 * rate) ** np.arange(moments + 1.0)
    parameters, gradients = theta, np.concatenate([[0.0], 4 * theta[1:]])
    return Trace(
        squared_gradient_distances=np.subtract.outer(gradients, gradients) ** 2,
        squared_parameter_distances=np.subtract.outer(parameters, parameters) ** 2,
        steps=np.arange(1, moments + 1),
        learning_rates=np.full(moments, rate),
    )


def test_below_1_over_l_every_step_is_certified() -> None:
    facts = excitation_facts(straight_descent(0.1), ESTIMATE)
    assert facts["acute_fraction"] == 1
    assert all(epoch["inequality_holds"] for epoch in facts["epochs"])
    assert [epoch["rate_times_L"] for epoch in facts["epochs"]] == pytest.approx([0.4] * 3)
    assert (facts["at_most_1/L"], facts["at_most_2/L"]) == (3, 3)
    assert "3 of 3 steps are certified" in excitation_table(straight_descent(0.1), ESTIMATE)


def test_between_1_and_2_over_l_the_steps_overshoot() -> None:
    facts = excitation_facts(straight_descent(0.4), ESTIMATE)
    assert facts["acute_fraction"] < 1
    assert facts["epochs"][0]["contraction_rates"] is None
    assert (facts["at_most_1/L"], facts["at_most_2/L"]) == (0, 3)


def test_a_step_is_held_against_the_rate_noted_where_it_ends() -> None:
    trace = replace(straight_descent(0.1), learning_rates=np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    epochs = excitation_facts(trace, ESTIMATE)["epochs"]
    assert [epoch["rate_times_L"] for epoch in epochs] == pytest.approx([0.8, 1.2, 1.6])
    assert [4.0 / epoch["inverse_rate"] for epoch in epochs] == pytest.approx([0.8, 1.2, 1.6])


def test_the_bounds_of_definition_1_are_there_for_machines() -> None:
    facts = excitation_facts(straight_descent(0.1), ESTIMATE)
    assert facts["excitation"]["everywhere"]
    assert 0 < facts["excitation"]["smallest"] <= facts["excitation"]["largest"]
    assert facts["assumption_1"]["constant"] == 4.0
    assert excitation_facts(straight_descent(0.4), ESTIMATE)["excitation"] is None
