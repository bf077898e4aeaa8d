"""Certificates read from a trace equal those of the vectors."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import mse_loss

from excite.errors import InputError
from excite.excitation import certificate, certify, gramian, step_size_decay
from excite.trace import Recorder, Trace

Floats = NDArray[np.float64]
TraceOf = Callable[[Floats, Floats, Floats], Trace]
Wander = Callable[[Literal["exact", "sketch"]], Trace]


def test_certificates_and_slopes_are_those_of_the_vectors(trace_of: TraceOf, walk: Floats) -> None:
    found = certify(trace_of(walk, 2 * walk, np.full(len(walk), 0.1)))
    points = torch.from_numpy(walk)
    for k, span in enumerate(found.spans):
        direct = certificate(points[k], points[k + 1], points[-1])
        assert span.holds == direct.holds
        np.testing.assert_allclose(span.rates, direct.rates, rtol=1e-6)
        assert math.isnan(span.residual) if not span.holds else span.residual < 1e-12
    expected = [np.linalg.norm(2 * walk[k]) / np.linalg.norm(walk[k] - walk[-1]) for k in range(len(walk) - 2)]
    np.testing.assert_allclose(found.slopes, expected, rtol=1e-9)
    assert found.largest_slope == pytest.approx(max(expected))
    np.testing.assert_allclose(found.inverse_rates, 10.0)


def test_sketch_certifies_only_clear_angles(wander: Wander) -> None:
    exact, sketched = certify(wander("exact")), certify(wander("sketch"))
    assert 0 < sketched.certified.sum() < sketched.angles.holds.sum()
    assert exact.certified[sketched.certified].all()
    assert {span.angle for span in sketched.spans} == {"acute", "right"}


def test_on_a_quadratic_the_proof_s_slope_is_below_the_largest_eigenvalue(trace_of: TraceOf) -> None:
    eigenvalues = np.array([3.0, 1.0, 0.2])
    theta = [np.ones(3)]
    for _ in range(200):
        theta.append(theta[-1] - 0.3 * eigenvalues * theta[-1])
    points = np.array(theta)
    found = certify(trace_of(points, eigenvalues * points, np.full(len(points), 0.3)))
    assert found.largest_slope <= 3.0 * (1 + 1e-6)
    assert found.satisfied.all()
    assert all(span.holds for span in found.spans)


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.75, 1.5])
def test_step_size_decay_is_the_exponent_of_a_power_law(exponent: float) -> None:
    assert step_size_decay(0.3 * np.arange(1.0, 165.0) ** -exponent) == pytest.approx(exponent)


def test_two_moments_are_not_enough(trace_of: TraceOf) -> None:
    with pytest.raises(InputError, match="too few moments"):
        certify(trace_of(np.eye(2), np.eye(2), np.ones(2)))


@pytest.mark.parametrize("given", [0.0, -1.0, np.nan, np.inf])
def test_refuses_a_non_positive_or_non_finite_l(trace_of: TraceOf, walk: Floats, given: float) -> None:
    with pytest.raises(InputError, match="L is"):
        certify(trace_of(walk, walk, np.ones(len(walk))), given)


def test_no_step_size_decay_without_learning_rates(trace_of: TraceOf, walk: Floats) -> None:
    found = certify(trace_of(walk, walk, np.full(len(walk), np.nan)))
    assert found.decay is None
    assert not found.satisfied.any()


def test_a_trace_needs_no_learning_rates_at_all(trace_of: TraceOf, walk: Floats) -> None:
    found = certify(trace_of(walk, walk, np.zeros(0)))
    assert found.decay is None
    assert np.isnan(found.inverse_rates).all()


def test_rate_of_a_step_is_recorded_at_its_end() -> None:
    """At a moment the recorder notes the rate of the step before it."""
    model = torch.nn.Linear(1, 1, bias=False)
    probe = torch.ones(1, 1), torch.zeros(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    recorder = Recorder(model, optimizer, probe=probe, loss=mse_loss, gradient="probe", slopes_per_epoch=0)
    for rate in (0.1, 0.2, 0.25, 0.5):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        mse_loss(model(probe[0]), probe[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        recorder.record()
    trace = recorder.trace
    lengths = np.diagonal(trace.parameter_distances, 1)[:-1]
    np.testing.assert_allclose(certify(trace).inverse_rates, trace.gradient_norms[:-2] / lengths, rtol=1e-6)


def quadratic_path(rate: float, steps: int = 12) -> tuple[Floats, Floats]:
    eigenvalues = np.array([3.0, 1.0, 0.2])
    theta = [np.ones(3)]
    for _ in range(steps):
        theta.append(theta[-1] - rate * eigenvalues * theta[-1])
    return np.array(theta), eigenvalues * np.array(theta)


def test_the_bounds_of_definition_1_are_those_of_the_certificates_signal(trace_of: TraceOf) -> None:
    points, gradients = quadratic_path(0.3)
    found = certify(trace_of(points, gradients, np.full(len(points), 0.3)))
    assert found.excitation is not None
    theta = torch.from_numpy(points)
    signals = []
    for k in range(len(points) - 2):
        direct = certificate(theta[k], theta[k + 1], theta[-1])
        square = torch.stack([direct.excite(column) for column in torch.eye(3, dtype=torch.float64)])
        values, vectors = torch.linalg.eigh(square)
        signals.append(vectors * values.sqrt())
    plain = gramian(torch.stack(signals), 1.0)
    assert found.excitation.smallest == pytest.approx(plain.smallest, rel=1e-6)
    assert found.excitation.largest == pytest.approx(plain.largest, rel=1e-6)
    assert found.excitation.smallest == pytest.approx(plain.rate, rel=1e-6)
    assert found.excitation.everywhere
    assert found.excitation.mean_rate >= found.excitation.smallest


def test_assumption_1_counts_the_slopes_above_l(trace_of: TraceOf) -> None:
    points, gradients = quadratic_path(0.3)
    trace = trace_of(points, gradients, np.full(len(points), 0.3))
    kept = certify(trace, 3.0 * (1 + 1e-9)).smoothness
    assert kept is not None
    assert kept.holds
    broken = certify(trace, 1.0).smoothness
    assert broken is not None
    every = [
        np.linalg.norm(gradients[i] - gradients[j]) / np.linalg.norm(points[i] - points[j])
        for i in range(len(points))
        for j in range(i)
    ]
    assert (broken.slopes, broken.above) == (len(every), sum(slope > 1 for slope in every))
    assert broken.largest == pytest.approx(max(every))
    assert "violated" in str(certify(trace, 1.0))


def test_bouncing_path_is_not_excited_everywhere(trace_of: TraceOf) -> None:
    points = np.array([[(-1.0) ** k, 0.1 * k] for k in range(8)])
    found = certify(trace_of(points, points, np.full(8, 0.1)))
    assert found.excitation is None or not found.excitation.everywhere
