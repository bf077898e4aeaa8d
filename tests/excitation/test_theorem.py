"""The theorem, step by step: a certificate exists exactly for strictly acute steps, and it reproduces the step."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from excite.errors import InputError
from excite.excitation import Certificate, certificate


def dense(theta: Tensor, theta_next: Tensor, theta_star: Tensor) -> Tensor:
    """ΦΦᵀ = log(I + B⁻¹) the plain way."""
    u, q = (theta - theta_next).double(), (theta_next - theta_star).double()
    b = torch.eye(len(u), dtype=torch.float64) - torch.outer(u, u) / (u @ u) + torch.outer(q, q) / (q @ u)
    values, vectors = torch.linalg.eigh(b)
    logarithm: Tensor = vectors @ torch.diag(torch.log1p(1 / values)) @ vectors.T
    return logarithm


@settings(max_examples=200)
@given(st.integers(0, 100_000), st.integers(1, 30), st.floats(1e-4, 1e4))
def test_certificate_holds_if_and_only_if_the_step_is_acute(seed: int, d: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    theta_star, q, u = torch.randn(3, d, generator=generator, dtype=torch.float64)
    u = size * u
    assume(abs(float(u @ q)) > 1e-9 * float(u.norm() * q.norm()))
    theta_next = theta_star + q
    theta = theta_next + u
    found = certificate(theta, theta_next, theta_star)
    assert found.holds == (float((theta - theta_next) @ (theta_next - theta_star)) > 0)
    if found.holds:
        assert found.residual <= 1e-8
        assert all(rate > 0 for rate in found.rates)
        assert all(0 < share < 1 for share in found.span.shares)
        torch.testing.assert_close(
            found.contract(theta - theta_star), theta_next - theta_star, rtol=1e-7, atol=1e-8 * float((u + q).norm())
        )


def test_operator_equals_the_dense_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        theta, theta_next, theta_star, v = torch.randn(4, 6, generator=generator, dtype=torch.float64)
        found = certificate(theta, theta_next, theta_star)
        if not found.holds:
            continue
        expected = dense(theta, theta_next, theta_star)
        torch.testing.assert_close(found.excite(v), expected @ v)
        torch.testing.assert_close(found.contract(v), torch.linalg.matrix_exp(-expected) @ v)
        eigenvalues = torch.linalg.eigvalsh(expected)
        for rate in (*found.rates, math.log(2)):
            assert (eigenvalues - rate).abs().min() < 1e-8


@pytest.mark.parametrize("angle", [1e-3, 1e-6, 1e-9, 1e-12])
def test_precision_at_nearly_right_and_nearly_zero_angles(angle: float) -> None:
    for turn in (math.pi / 2 - angle, angle):
        u = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        q = torch.tensor([math.cos(turn), math.sin(turn), 0.0], dtype=torch.float64)
        found = certificate(u + q, q, torch.zeros(3, dtype=torch.float64))
        assert found.holds
        assert found.residual <= 1e-8


def test_right_and_obtuse_angles_are_not_certified() -> None:
    zero = torch.zeros(2)
    right = certificate(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0]), zero)
    assert not right.holds
    assert right.span.angle == "right"
    assert "equality" in str(right)
    obtuse = certificate(torch.tensor([1.0, 1.0]), torch.tensor([-1.0, 1.0]), zero)
    assert not obtuse.holds
    assert obtuse.span.angle == "obtuse"
    assert "violated" in str(obtuse)
    for nowhere in (right, obtuse):
        assert math.isnan(nowhere.residual)
        with pytest.raises(InputError, match="ΦΦᵀ"):
            nowhere.excite(zero)


@pytest.mark.parametrize("theta_next", [[1.0, 1.0], [0.0, 0.0]])
def test_zero_step_and_exact_arrival_count_as_right_angles(theta_next: list[float]) -> None:
    found = certificate(torch.ones(2), torch.tensor(theta_next), torch.zeros(2))
    assert found.span.angle == "right"


def test_refuses_non_finite_values_and_unequal_sizes() -> None:
    with pytest.raises(InputError, match="non-finite"):
        certificate(torch.tensor([math.nan, 1.0]), torch.ones(2), torch.zeros(2))
    with pytest.raises(InputError, match="entries"):
        certificate(torch.ones(3), torch.ones(2), torch.zeros(2))


class TestRemarks:
    """Remarks 1 to 3 of the paper, and the counterexample to its conjecture, on ½ Σ λᵢ θᵢ²."""

    eigenvalues = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)
    largest = 4.0  # L in the paper

    def descend(self, rate: float, theta: Tensor) -> Tensor:
        return theta - rate * self.eigenvalues * theta

    def test_remark_1_one_over_l_is_sufficient_not_necessary(self) -> None:
        theta = torch.tensor([0.1, 1.0, 1.0], dtype=torch.float64)
        after = self.descend(1.5 / self.largest, theta)
        assert certificate(theta, after, torch.zeros(3, dtype=torch.float64)).holds

    def test_remark_2_at_up_to_one_over_l_the_loss_falls_steadily(self) -> None:
        theta = torch.ones(3, dtype=torch.float64)
        losses = []
        for _ in range(50):
            losses.append(float((self.eigenvalues * theta**2).sum() / 2))
            theta = self.descend(1 / self.largest, theta)
        assert all(after < before for before, after in itertools.pairwise(losses))

    @pytest.mark.parametrize(("multiple", "converges"), [(1.99, True), (2.01, False)])
    def test_remark_3_a_fixed_rate_converges_below_two_over_l(self, multiple: float, converges: bool) -> None:
        theta = torch.ones(3, dtype=torch.float64)
        for _ in range(2000):
            theta = self.descend(multiple / self.largest, theta)
        assert (float(theta.norm()) < 1e-3) == converges

    @pytest.mark.parametrize("multiple", [1.01, 1.5, 1.99])
    def test_between_one_and_two_over_l_a_one_dimensional_step_overshoots(self, multiple: float) -> None:
        theta, goal = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        found = certificate(theta, theta - multiple / self.largest * self.largest * theta, goal)
        assert found.span.angle == "obtuse"


CURVATURES = torch.tensor([4.0, 1.0, 0.1], dtype=torch.float64)
LARGEST = 4.0  # L


def certified_descent(curvatures: Tensor, rate: float, steps: int) -> list[Certificate]:
    """Gradient descent on ½ Σ λᵢ θᵢ² from θ = 1 to θ* = 0."""
    path = [torch.ones(len(curvatures), dtype=torch.float64)]
    for _ in range(steps):
        path.append(path[-1] - rate * curvatures * path[-1])
    return [certificate(now, after, torch.zeros(len(curvatures))) for now, after in itertools.pairwise(path)]


@pytest.mark.parametrize("multiple", [0.1, 0.5, 0.99])
def test_below_one_over_l_every_step_is_certified(multiple: float) -> None:
    descent = certified_descent(CURVATURES, multiple / LARGEST, steps=60)
    assert all(step.holds for step in descent)
    assert max(step.residual for step in descent) < 1e-12


@pytest.mark.parametrize("multiple", [1.2, 1.5, 1.9, 2.0])
def test_above_one_over_l_steps_are_certified_if_other_directions_outweigh_the_overshoot(multiple: float) -> None:
    descent = certified_descent(CURVATURES, multiple / LARGEST, steps=40)
    shares = multiple / LARGEST * CURVATURES
    for k, step in enumerate(descent):
        theta = (1 - shares) ** k
        product = float((shares * (1 - shares) * theta**2).sum())  # uᵀq
        assert step.holds == (product > 0)
    assert not all(step.holds for step in descent)


@pytest.mark.parametrize(("multiple", "certified"), [(0.9, True), (1.1, False), (1.5, False), (2.0, False)])
def test_in_one_dimension_no_step_above_one_over_l_is_certified(multiple: float, certified: bool) -> None:
    assert {step.holds for step in certified_descent(torch.tensor([4.0]), multiple / 4, steps=20)} == {certified}


def test_refuses_a_diverging_descent() -> None:
    with pytest.raises(InputError, match="diverge"):
        certified_descent(CURVATURES, 1e9, steps=200)  # overflows
