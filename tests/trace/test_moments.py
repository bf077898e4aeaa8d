"""Distances between moments are those of the vectors, also where they nearly coincide, wherever they are kept."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from excite.trace.moments import Moments, squared_distance


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 1e-3, 1e-5, 1e-7]))
def test_near_equal_moments_keep_their_distance(seed: int, closeness: float) -> None:
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


def test_vectors_beyond_the_limit_go_to_disk_and_give_the_same_distances() -> None:
    vectors = torch.randn(6, 300, generator=torch.Generator().manual_seed(0))
    memory, disk = Moments("a", vectors[0]), Moments("b", vectors[0], memory_limit=3 * vectors[0].nbytes)
    for vector in vectors[1:]:
        memory.append(vector)
        disk.append(vector)
    assert np.array_equal(memory.squared, disk.squared)
    assert len(disk) == 5
    restored = Moments("b", vectors[0], memory_limit=0)
    restored.restore(*disk.state())
    restored.append(vectors[1])
    memory.append(vectors[1])
    assert np.array_equal(memory.squared, restored.squared)


def test_long_vectors_are_summed_in_chunks() -> None:
    a = np.arange(2**20 + 3, dtype=np.float32)
    assert (
        squared_distance(a, None)
        == squared_distance(a, np.zeros_like(a))
        == pytest.approx(float(np.sum(a.astype(np.float64) ** 2)), rel=1e-12)
    )
