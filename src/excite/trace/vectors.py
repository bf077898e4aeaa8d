"""Turn the parameters (or gradients) of a model into one vector whose distances can be kept: whole, or as a sketch.

A sketch is linear, so sums, means and differences of sketches are sketches of them, and its squared length is right
on average with a relative standard error of √(2/entries): 1.6% for 8,192 entries, 0.8% for a length.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

SKETCH_ENTRIES = 8192


class Projection(Protocol):
    """Adds tensors, one per parameter, into a vector."""

    entries: int
    description: str

    def zeros(self) -> Tensor: ...

    def add(self, vector: Tensor, index: int, tensor: Tensor) -> None:
        """Add the tensor that belongs to parameter number `index`."""
        ...


class Whole:
    """Every entry, in float32 (float64 where the model has it)."""

    def __init__(self, shapes: Sequence[Tensor]) -> None:
        self._shapes = [tensor.shape for tensor in shapes]
        sizes = [tensor.numel() for tensor in shapes]
        self._offsets = [sum(sizes[:index]) for index in range(len(sizes))]
        self._dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in shapes) else torch.float32
        self._device = shapes[0].device
        self.entries = sum(sizes)
        self.description = f"exact vectors of {self.entries:,} entries"

    def zeros(self) -> Tensor:
        return torch.zeros(self.entries, dtype=self._dtype, device=self._device)

    def add(self, vector: Tensor, index: int, tensor: Tensor) -> None:
        shape, offset = self._shapes[index], self._offsets[index]
        vector[offset : offset + shape.numel()].view(shape).add_(tensor)


class CountSketch:
    """`entries` sums of entries with random signs; memory: one byte per parameter for the signs.

    The entries of a parameter fall into blocks of the sketch's length; each block is shifted by a random amount, so
    that two entries of different blocks meet in one sum with probability 1/entries.
    """

    def __init__(self, shapes: Sequence[Tensor], *, entries: int = SKETCH_ENTRIES, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.entries = entries
        self._device = shapes[0].device
        self._dtype = torch.float32 if self._device.type == "mps" else torch.float64
        self._signs: list[Tensor] = []
        self._shifts: list[list[int]] = []
        for tensor in shapes:
            signs = torch.randint(0, 2, (tensor.numel(),), dtype=torch.int8, generator=generator)
            shifts = torch.randint(0, entries, (math.ceil(tensor.numel() / entries),), generator=generator)
            self._signs.append(signs.mul_(2).sub_(1).to(self._device))
            self._shifts.append(shifts.tolist())
        error = math.sqrt(1 / (2 * entries))
        self.description = f"a count sketch of {entries:,} entries (relative error of a distance: {error:.1%})"

    def zeros(self) -> Tensor:
        return torch.zeros(self.entries, dtype=self._dtype, device=self._device)

    def add(self, vector: Tensor, index: int, tensor: Tensor) -> None:
        flat, signs = tensor.reshape(-1), self._signs[index]
        unrolled = torch.zeros(2 * self.entries, dtype=self._dtype, device=self._device)
        for block, shift in enumerate(self._shifts[index]):
            part = slice(block * self.entries, (block + 1) * self.entries)
            signed = flat[part] * signs[part]
            unrolled[shift : shift + len(signed)] += signed
        vector += unrolled[: self.entries] + unrolled[self.entries :]


def dense(tensor: Tensor) -> Tensor:
    """The same tensor with its zeros: embeddings may give sparse gradients."""
    return tensor.to_dense() if tensor.is_sparse else tensor


def project(projection: Projection, tensors: Sequence[Tensor | None]) -> Tensor:
    """The vector of `tensors`; None counts as zeros."""
    vector = projection.zeros()
    with torch.no_grad():
        for index, tensor in enumerate(tensors):
            if tensor is not None:
                projection.add(vector, index, dense(tensor.detach()))
    return vector


def project_gradient(
    projection: Projection, parameters: Sequence[Tensor], loss: Callable[[], Tensor], vector: Tensor | None = None
) -> Tensor:
    """Add the gradient of `loss()` to `vector`, one parameter at a time: `.grad` stays as it is, no copy is kept."""
    total = projection.zeros() if vector is None else vector

    def take(index: int) -> Callable[[Tensor], Tensor]:
        def hook(gradient: Tensor) -> Tensor:
            with torch.no_grad():
                projection.add(total, index, dense(gradient))
            return gradient if gradient.is_sparse else gradient.new_zeros(()).expand_as(gradient)  # lets go of it

        return hook

    handles = [
        parameter.register_hook(take(index))  # type: ignore[no-untyped-call]
        for index, parameter in enumerate(parameters)
    ]
    try:
        with torch.enable_grad():
            torch.autograd.grad(loss(), parameters, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return total
