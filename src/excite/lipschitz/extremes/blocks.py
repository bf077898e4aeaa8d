"""Draw blocks of slopes and keep the largest of each: the M block maxima of Algorithm 1."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError

Floats = NDArray[np.float64]
Draw = Callable[[int, int, np.random.Generator], Floats]  # (M, N, rng) -> M block maxima


def secant_maxima(slopes: Floats) -> Draw:
    """Blocks of N distinct moments, paired at random; `slopes[i, j]` is the secant between moments i and j."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        points = _distinct(len(slopes), n_maxima, n_points - n_points % 2, rng)
        return _largest(slopes[points[:, 0::2], points[:, 1::2]])

    return draw


def unmatched_maxima(gradients: Floats, parameters: Floats) -> Draw:
    """As the released code draws: gradient distances and parameter distances from different pairs of moments."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        even = n_points - n_points % 2
        first, second = (_distinct(len(gradients), n_maxima, even, rng) for _ in range(2))
        rise = gradients[first[:, 0::2], first[:, 1::2]]
        run = parameters[second[:, 0::2], second[:, 1::2]]
        return _largest(np.divide(rise, run, out=np.zeros_like(rise), where=run > 0))

    return draw


def local_maxima(slopes: Floats) -> Draw:
    """Blocks of N/2 distinct slopes, each measured at one step: its two points are the step's ends."""

    def draw(n_maxima: int, n_points: int, rng: np.random.Generator) -> Floats:
        return _largest(slopes[_distinct(len(slopes), n_maxima, n_points // 2, rng)])

    return draw


def _distinct(n: int, blocks: int, size: int, rng: np.random.Generator) -> NDArray[np.int_]:
    if size > n:
        raise InputError(f"The trace holds {n} values; a block needs {size}. Record longer or pass a smaller N.")
    return rng.permuted(np.tile(np.arange(n), (blocks, 1)), axis=1)[:, :size]


def _largest(slopes: Floats) -> Floats:
    largest: Floats = slopes.max(axis=1)
    return largest
