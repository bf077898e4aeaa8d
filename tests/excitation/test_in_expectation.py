"""The condition in expectation is exact for SGD on a noisy quadratic, and holds below 1/L on convex losses."""

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from excite.errors import InputError
from excite.excitation import ExpectedAcuteness, expected_acuteness
from excite.trace import Trace

Floats = NDArray[np.float64]

ROOT = Path(__file__).parents[2]
MATRIX = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
EXAMPLES = torch.tensor([[1.0, 0.0], [-1.0, 2.0], [0.5, -1.0], [2.0, 1.0]], dtype=torch.float64)
GOAL = EXAMPLES.mean(0)  # the loss of an example x is ½ (θ − x)ᵀA(θ − x)
RATE, DECAY = 0.15, 0.01


def some(value: float) -> Floats:
    return np.array([value])


def expected(ahead: float, squared: float, noise: float, rate: float, batch_size: int = 1) -> ExpectedAcuteness:
    return ExpectedAcuteness(some(ahead), some(squared), some(noise), some(rate), batch_size)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_it_is_the_mean_over_all_batches_of_the_step_of_torch(batch_size: int, momentum: float, nesterov: bool) -> None:
    """Every batch that can be drawn with replacement is taken by torch's own SGD, from the same state."""
    theta = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    sgd = torch.optim.SGD([theta], lr=RATE, momentum=momentum, weight_decay=DECAY, nesterov=nesterov)

    def step(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, batch: torch.Tensor) -> None:
        parameter.grad = MATRIX @ (parameter.detach() - batch.mean(0))
        optimizer.step()

    for example in EXAMPLES[:3]:  # fills the momentum buffer
        step(sgd, theta, example[None])
    products = []
    for batch in itertools.product(EXAMPLES, repeat=batch_size):
        twin = nn.Parameter(theta.detach().clone())
        optimizer = torch.optim.SGD([twin], lr=RATE, momentum=momentum, weight_decay=DECAY, nesterov=nesterov)
        optimizer.load_state_dict(copy.deepcopy(sgd.state_dict()))
        step(optimizer, twin, torch.stack(batch))
        u, q = theta.detach() - twin.detach(), twin.detach() - GOAL
        products.append(float(u @ q))
    now, way = theta.detach(), theta.detach() - GOAL
    gradient = MATRIX @ way + DECAY * now
    trace = float((MATRIX @ (EXAMPLES - GOAL).T).square().sum()) / len(EXAMPLES)
    buffer = sgd.state[theta]["momentum_buffer"] if momentum else torch.zeros_like(now)
    carry = momentum ** (1 + nesterov) * buffer
    rows = [
        float(gradient @ gradient),
        trace,
        float(gradient @ carry),
        float(carry @ carry),
        float(gradient @ way),
        float(carry @ way),
    ]
    found = expected_acuteness(a_trace(rows, batch_size, momentum, nesterov))
    assert found.products[0] == pytest.approx(np.mean(products), rel=1e-9)
    assert found.holds.mean() == (np.mean(products) > 0)


def a_trace(rows: list[float], batch_size: int, momentum: float, nesterov: bool, sketch: float = 0.0) -> Trace:
    """Three moments with the same statistics: only the first begins a step that is judged."""
    facts: dict[str, Any] = {"batch_size": batch_size, "sgd": {"momentum": momentum, "nesterov": nesterov}}
    distances = 1.0 - np.eye(4)
    return Trace(
        distances,
        distances,
        steps=np.arange(1, 4),
        learning_rates=np.full(3, RATE),
        batch_statistics=np.array([rows] * 3),
        facts=facts | {"cosine_error": sketch},
    )


positive = st.floats(1e-3, 1e3)


@given(ahead=positive, squared=positive, noise=positive, rate=positive, batch_size=st.integers(1, 10_000))
def test_largest_rate_and_smallest_batch_are_where_the_sign_changes(
    ahead: float, squared: float, noise: float, rate: float, batch_size: int
) -> None:
    found = expected(ahead, squared, noise, rate, batch_size)
    largest = float(found.largest_rates[0])
    assert replace(found, rate=some(0.999 * largest)).holds[0]
    assert not replace(found, rate=some(1.001 * largest)).holds[0]
    smallest = found.batch_size_for()
    if smallest is None:
        assert not replace(found, batch_size=10**15).holds[0]
        assert (found.batch_sizes < 10**15).mean() == 0
    elif smallest < 10**9:  # beyond, rounding decides
        assert (found.batch_sizes < 1.001 * smallest).mean() == 1
        assert replace(found, batch_size=math.ceil(1.001 * smallest)).holds[0]
        assert smallest < 3 or not replace(found, batch_size=max(math.floor(0.999 * (smallest - 1)), 1)).holds[0]


directions = st.lists(st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=1, max_size=6)
# Derivatives of convex functions with a minimum at 0 and second derivatives up to 1.
SLOPES: dict[str, Callable[[Floats], Floats]] = {
    "quadratic": lambda z: z,
    "log cosh": np.tanh,
    "Huber": lambda z: np.clip(z, -1, 1),
    "one-sided": lambda z: np.maximum(z, 0),  # has a half-line of minima
}


@pytest.mark.parametrize("kind", SLOPES)
@given(directions, st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.floats(0, 100), st.floats(0.01, 0.99))
def test_steps_on_a_convex_loss_are_acute_below_the_inverse_of_its_smoothness(
    kind: str, rows: list[list[float]], way: list[float], noise: float, share: float
) -> None:
    """F(θ) = Σ h(aᵢᵀ(θ − θ*)) is L-smooth for L = λ_max(Σ aᵢaᵢᵀ). With noise, 1/L shrinks by ‖∇F‖²/E‖g‖²."""
    a, w = np.array(rows), np.array(way)
    gradient = SLOPES[kind](a @ w) @ a
    squared, lipschitz = float(gradient @ gradient), float(np.linalg.eigvalsh(a.T @ a)[-1])
    if squared < 1e-12 or lipschitz < 1e-12:
        return  # a minimum, where no step is taken
    ahead = float(gradient @ w)
    assert ahead >= squared / lipschitz * (1 - 1e-9)
    assert expected(ahead, squared, 0.0, share / lipschitz).holds[0]
    assert expected(ahead, squared, noise, share / lipschitz * squared / (squared + noise)).holds[0]


def test_equality_is_possible_at_the_inverse_of_the_smoothness() -> None:
    """In one dimension a step at 1/L ends at θ*: Assumption 2 holds with equality, and no step is certified."""
    found = expected(ahead=4.0, squared=16.0, noise=0.0, rate=0.25)  # l = 2θ² at θ = 1
    assert found.products[0] == 0
    assert not found.holds[0]


def test_no_batch_is_enough_for_a_step_that_overshoots_without_noise() -> None:
    found = expected_acuteness(a_trace([1.0, 5.0, 0.0, 100.0, 1.0, 10.0], 32, 0.9, False))
    assert found.batch_size_for(0.5) is None
    assert found.to_json()["batch_sizes"] == [None]
    assert "No batch is enough at 1 of them" in str(found)


def test_shares_of_moments() -> None:
    """Two moments need batches above 10 and 100, and a third one is hopeless."""
    found = ExpectedAcuteness(
        ahead=np.array([2.0, 2.0, 0.5]),
        squared=np.ones(3),
        noise=np.array([10.0, 100.0, 1.0]),
        rate=np.ones(3),
        batch_size=11,
    )
    assert found.holds.tolist() == [True, False, False]
    assert [found.batch_size_for(share) for share in (0.0, 1 / 3, 0.5, 1.0)] == [11, 11, 101, None]
    assert [(found.batch_sizes < size).mean() for size in (10, 11, 101)] == [0, 1 / 3, 2 / 3]
    assert "acute at 1 of 3" in str(found)


def test_a_sketch_does_not_tell_close_signs() -> None:
    rows = [1.0, 0.0, 0.0, 0.0, RATE + 0.001, 0.0]
    assert not expected_acuteness(a_trace(rows, 1, 0.0, False)).undecided.any()
    sketched = expected_acuteness(a_trace(rows, 1, 0.0, False, sketch=0.01))
    assert sketched.undecided.all()
    assert "exact" in str(sketched)


def test_says_what_is_missing() -> None:
    whole = a_trace([1.0] * 6, 1, 0.0, False)
    with pytest.raises(InputError, match=r"noise_examples.*draw"):
        expected_acuteness(replace(whole, batch_statistics=np.zeros(0)))
    with pytest.raises(InputError, match="too few moments"):
        expected_acuteness(replace(whole, steps=np.arange(2)))
    with pytest.raises(InputError, match="diverge"):
        expected_acuteness(replace(whole, batch_statistics=np.full((3, 6), np.nan)))


@pytest.mark.parametrize("file", sorted((ROOT / "results" / "figure-4-small").rglob("trace.safetensors"))[:2])
def test_traces_recorded_before_batch_statistics_say_how_to_record_them(file: Path) -> None:
    with pytest.raises(InputError, match="noise_examples"):
        expected_acuteness(Trace.load(file))
