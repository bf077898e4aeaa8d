"""Distances between moments are those of their vectors; a sketch keeps them in the mean."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from excite.trace.moments import CountSketch, Moments, Whole, project, project_gradient


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 1e-3, 1e-5, 1e-7]))
def test_distances_of_nearly_equal_moments_are_accurate(seed: int, closeness: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    first = 100 * torch.randn(500, generator=generator)
    moments = Moments("parameters", None)
    vectors = [first, first * (1 + closeness), torch.randn(500, generator=generator), first * (1 - closeness)]
    for vector in vectors:
        moments.append(vector)
    for i, a in enumerate(vectors):
        for j, b in enumerate(vectors):
            direct = float((a.double() - b.double()).norm())
            assert np.sqrt(moments.squared[i + 1, j + 1]) == pytest.approx(direct, rel=1e-5, abs=0)
        assert np.sqrt(moments.squared[0, i + 1]) == pytest.approx(float(a.double().norm()), rel=1e-12)


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(7,), (40, 3, 3, 3), (300, 50)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_whole_concatenates_in_logical_order() -> None:
    values = tensors()
    values[1] = values[1].to(memory_format=torch.channels_last)
    assert torch.equal(project(Whole(values), values), torch.cat([value.flatten() for value in values]))


def test_missing_gradients_count_as_zeros() -> None:
    values = tensors()
    vector = project(Whole(values), [None, values[1], None])
    assert vector[:7].abs().sum() == 0
    assert torch.equal(vector[7 : 7 + 1080], values[1].flatten())


def test_a_sketch_is_linear_and_seeded() -> None:
    values = tensors()
    sketch = CountSketch(values, entries=256, seed=4)
    both = project(sketch, [2 * a + 3 * a.square() for a in values])
    apart = 2 * project(sketch, values) + 3 * project(sketch, [a.square() for a in values])
    torch.testing.assert_close(both, apart, rtol=1e-5, atol=1e-3)
    assert torch.equal(project(sketch, values), project(CountSketch(values, entries=256, seed=4), values))
    assert not torch.equal(project(sketch, values), project(CountSketch(values, entries=256, seed=5), values))


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts torch's operations: kernels, on a GPU."""

    operations = 0

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 130 * 256 + 5, 400 * 256])
def test_a_sketch_is_the_sum_of_its_rotated_blocks_to_the_bit(size: int) -> None:
    generator, entries, seed = torch.Generator().manual_seed(2), 256, 4
    values = torch.randn(size, generator=generator)
    drawn = torch.Generator().manual_seed(seed)
    signs = 2 * torch.randint(0, 2, (size,), dtype=torch.int8, generator=drawn) - 1
    blocks = torch.split(values * signs, entries)
    shifts = torch.randint(0, entries, (len(blocks),), generator=drawn).tolist()
    unrolled = torch.zeros(2 * entries, dtype=torch.float64)
    for block, shift in zip(blocks, shifts, strict=True):
        unrolled[shift : shift + len(block)] += block
    sketch = CountSketch([values], entries=entries, seed=seed)
    with Counting() as counting:  # type: ignore[no-untyped-call]
        vector = project(sketch, [values])
    assert torch.equal(vector, unrolled[:entries] + unrolled[entries:])
    assert counting.operations <= 20 + 12 * math.ceil(len(blocks) / 128)


@pytest.mark.parametrize("kind", ["dense", "a few large entries", "one layer"])
def test_squared_lengths_are_unbiased_with_the_stated_error(kind: str) -> None:
    values = tensors()
    if kind == "a few large entries":
        values[2].view(-1)[::1024] *= 100
    if kind == "one layer":
        values = [torch.zeros_like(values[0]), torch.zeros_like(values[1]), values[2]]
    length = float(sum(value.double().square().sum() for value in values))
    entries = 512
    ratios = torch.tensor(
        [
            float(project(CountSketch(values, entries=entries, seed=seed), values).square().sum()) / length
            for seed in range(200)
        ]
    )
    spread = (2 / entries) ** 0.5
    assert abs(float(ratios.mean()) - 1) < 4 * spread / 200**0.5
    assert float(ratios.std()) < 1.3 * spread


def test_cosines_near_zero_have_the_stated_error() -> None:
    values, others = tensors(), [torch.randn(value.shape) for value in tensors()]
    exact = _cosine(Whole(values), values, others)
    sketches = [CountSketch(values, entries=512, seed=seed) for seed in range(200)]
    errors = torch.tensor([_cosine(sketch, values, others) - exact for sketch in sketches])
    assert float(errors.std()) == pytest.approx(sketches[0].cosine_error, rel=0.2)
    assert Whole(values).cosine_error == 0


def _cosine(projection: Whole | CountSketch, a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    first, second = project(projection, a), project(projection, b)
    return float(torch.nn.functional.cosine_similarity(first, second, dim=0))


@pytest.mark.parametrize("kind", ["whole", "sketch"])
def test_project_gradient_does_not_touch_grad(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    parameters = list(model.parameters())
    x = torch.randn(5, 4)
    parameters[0].grad = torch.ones_like(parameters[0])
    projection = Whole(parameters) if kind == "whole" else CountSketch(parameters, entries=16)
    vector = project_gradient(projection, parameters, lambda: model(x).square().sum())
    expected = torch.autograd.grad(model(x).square().sum(), parameters)
    torch.testing.assert_close(vector, project(projection, expected))
    assert torch.equal(parameters[0].grad, torch.ones_like(parameters[0]))
    assert all(parameter.grad is None for parameter in parameters[1:])
    (unhooked,) = torch.autograd.grad(model(x).square().sum(), parameters[:1])
    assert torch.equal(unhooked, expected[0])
