"""Estimates of L side by side, and the theorem's conditions along a known descent."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from excite.lipschitz.protocol import LipschitzEstimate
from excite.report.estimates import beside, estimates_table, excitation_facts, excitation_table
from excite.runs.folder import RunFolder
from excite.trace import Trace


def test_lists_methods_and_why_one_has_no_estimate(write_run: Callable[..., RunFolder]) -> None:
    found: dict[str, LipschitzEstimate | str] = {
        "local": LipschitzEstimate(4.0, (3.0, 5.0), "local", False, "25 maxima", p_value=0.5),
        "curvature": "The trace holds no curvatures.",
    }
    lines = estimates_table(found, write_run({})).splitlines()
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


def test_certifies_every_step_below_1_over_l() -> None:
    facts = excitation_facts(straight_descent(0.1), ESTIMATE)
    assert facts["acute_fraction"] == 1
    assert all(epoch["inequality_holds"] for epoch in facts["epochs"])
    assert [epoch["rate_times_L"] for epoch in facts["epochs"]] == pytest.approx([0.4] * 3)
    assert (facts["at_most_1/L"], facts["at_most_2/L"]) == (3, 3)
    table = excitation_table(straight_descent(0.1), ESTIMATE)
    assert "3 of 3 steps are certified" in table
    assert "whole epoch" not in table


def test_says_that_a_step_between_moments_is_a_whole_epoch() -> None:
    trace = straight_descent(0.1)
    assert "whole epoch" in excitation_table(replace(trace, steps=10 * trace.steps), ESTIMATE)


def test_steps_between_1_and_2_over_l_overshoot() -> None:
    facts = excitation_facts(straight_descent(0.4), ESTIMATE)
    assert facts["acute_fraction"] < 1
    assert facts["epochs"][0]["contraction_rates"] is None
    assert (facts["at_most_1/L"], facts["at_most_2/L"]) == (0, 3)


def test_uses_the_rate_recorded_at_the_end_of_a_step() -> None:
    trace = replace(straight_descent(0.1), learning_rates=np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    epochs = excitation_facts(trace, ESTIMATE)["epochs"]
    assert [epoch["rate_times_L"] for epoch in epochs] == pytest.approx([0.8, 1.2, 1.6])
    assert [4.0 / epoch["inverse_rate"] for epoch in epochs] == pytest.approx([0.8, 1.2, 1.6])


def test_facts_contain_the_bounds_of_definition_1() -> None:
    facts = excitation_facts(straight_descent(0.1), ESTIMATE)
    assert facts["excitation"]["everywhere"]
    assert 0 < facts["excitation"]["smallest"] <= facts["excitation"]["largest"]
    assert facts["assumption_1"]["constant"] == 4.0
    assert excitation_facts(straight_descent(0.4), ESTIMATE)["excitation"] is None


def test_the_l_of_other_presets_is_told_and_a_stated_one_is_not() -> None:
    sentence = beside(RunFolder(Path(__file__).parents[2] / "results/table-1-whose-l/seed-0"))
    assert "fitted 9.445 (not identified)" in sentence
    assert "authors 0.01309 (not identified)" in sentence
    assert "stated" not in sentence  # the run's own
