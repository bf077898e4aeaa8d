"""Definition 1 on signals whose answer is known, and the exponential stability that follows from it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from excite.errors import InputError
from excite.excitation import gramian, simulate


def test_a_constant_multiple_of_the_identity() -> None:
    signal = math.sqrt(2) * torch.eye(3).expand(10, 3, 3)
    found = gramian(signal, window=3)
    assert found.persistently_exciting
    assert (found.smallest, found.largest, found.rate) == pytest.approx((6, 6, 2), rel=1e-6)
    assert 0 < found.guaranteed_rate <= found.rate


def test_alternating_directions_excite_over_whole_turns_only() -> None:
    signal = torch.eye(2).repeat(8, 1)  # Φ is (1, 0), (0, 1), (1, 0), …
    assert not gramian(signal, window=1).persistently_exciting
    found = gramian(signal, window=2)
    assert found.persistently_exciting
    assert (found.smallest, found.largest) == pytest.approx((1, 1))
    assert found.rate == pytest.approx(0.5)  # each direction shrinks by 1/e in 2 units of time


def test_a_signal_in_a_plane_does_not_excite_space() -> None:
    signal = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).repeat(5, 1)
    found = gramian(signal, window=4)
    assert not found.persistently_exciting
    assert found.smallest == 0
    assert found.rate == 0
    assert str(found).startswith("Not persistently exciting")


def test_a_finer_step_scales_time() -> None:
    signal = torch.eye(2).expand(20, 2, 2)
    assert gramian(signal, window=1.0, step=0.1).smallest == pytest.approx(1.0)


def test_simulation_is_exact_not_a_small_step_approximation() -> None:
    signal = torch.tensor([[3.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    path = simulate(signal, torch.tensor([1.0, 2.0]), step=0.7)
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert torch.equal(path[0], expected)
    for k, phi in enumerate(signal):
        expected = torch.linalg.matrix_exp(-0.7 * torch.outer(phi, phi)) @ expected
        torch.testing.assert_close(path[k + 1], expected)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6))
def test_errors_shrink_at_least_at_the_stated_rates(seed: int, d: int, p: int, window: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    signal = torch.randn(12, d, p, generator=generator, dtype=torch.float64)
    found = gramian(signal, window=window)
    assert found.guaranteed_rate <= found.rate + 1e-12
    path = simulate(signal, torch.randn(d, generator=generator, dtype=torch.float64)).norm(dim=1)
    bound = path[:-window] * math.exp(-found.rate * window)
    assert (path[window:] <= bound * (1 + 1e-9) + 1e-300).all()


@pytest.mark.parametrize("window", [0.5, 11])
def test_refuses_a_window_that_is_too_long_or_no_multiple(window: float) -> None:
    with pytest.raises(InputError, match="window"):
        gramian(torch.ones(10, 2), window=window)


@pytest.mark.parametrize("given", [{"window": 0}, {"window": torch.nan}, {"window": 2, "step": 0}])
def test_refuses_a_non_positive_window(given: dict[str, float]) -> None:
    with pytest.raises(InputError, match="above 0"):
        gramian(torch.ones(10, 2), **given)


def test_refuses_a_step_of_zero() -> None:
    with pytest.raises(InputError, match="step"):
        simulate(torch.ones(10, 2), torch.ones(2), step=0)


def test_refuses_a_signal_of_the_wrong_shape() -> None:
    with pytest.raises(InputError, match="signal"):
        gramian(torch.full((4, 2), torch.nan), window=1)
