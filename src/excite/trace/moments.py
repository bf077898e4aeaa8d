"""Distances between the moments of a run: each new vector, exact or sketched, is compared with all before it.

A sketch is linear, so sums, means and differences of sketches are sketches of the sums, means and differences. Its
squared length is unbiased, with a relative standard error of √(2/entries): 1.6% for 8,192 entries, or 0.8% for a
length. A cosine near 0 has a standard error of 1/√entries, 0.011.

Squared distances are summed from differences, entry by entry in float64. Computing them from inner products would lose
half of the digits when two moments nearly coincide.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from excite.errors import CorruptFileError
from excite.files import atomic, sha256
from excite.precision import widest

Storage = Literal["auto", "exact", "sketch"]
Floats = NDArray[np.float64]

SKETCH_ENTRIES = 8192
EXACT_LIMIT = 2_000_000  # parameters; storage="auto" sketches larger models
_BLOCKS = 128  # number of blocks of a sketch that are added at once


class Whole:
    """Stores every entry, in float32 (float64 if the model has float64 parameters)."""

    cosine_error = 0.0

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        wide = any(parameter.dtype == torch.float64 for parameter in parameters)
        self.dtype, self.device = torch.float64 if wide else torch.float32, parameters[0].device
        self._sizes = [parameter.numel() for parameter in parameters]
        self.entries = sum(self._sizes)
        self.description = f"exact vectors of {self.entries:,} entries"

    def __call__(self, tensors: Sequence[Tensor | None]) -> Tensor:
        pairs = zip(tensors, self._sizes, strict=True)
        flat = [torch.zeros(size, device=self.device) if t is None else t.reshape(-1) for t, size in pairs]
        return torch.cat([part.to(self.dtype) for part in flat])


class CountSketch:
    """`entries` sums of entries with random signs; the signs take one byte per parameter.

    The entries of a parameter are split into blocks of the sketch's length, and each block is rotated by a random
    amount. Two entries of different blocks then fall into the same sum with probability 1/entries.
    """

    def __init__(self, parameters: Sequence[Tensor], *, entries: int = SKETCH_ENTRIES, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.entries = entries
        self.cosine_error = 1 / math.sqrt(entries)  # standard error of a cosine near 0
        self.device = parameters[0].device
        self.dtype = widest(self.device)
        self._signs: list[Tensor] = []
        self._shifts: list[Tensor] = []
        self._columns = torch.arange(entries, device=self.device)
        for parameter in parameters:
            signs = torch.randint(0, 2, (parameter.numel(),), dtype=torch.int8, generator=generator)
            shifts = torch.randint(0, entries, (math.ceil(parameter.numel() / entries),), generator=generator)
            self._signs.append(signs.mul_(2).sub_(1).to(self.device))
            self._shifts.append(shifts.to(self.device))
        error = math.sqrt(1 / (2 * entries))
        self.description = f"a count sketch of {entries:,} entries (relative error of a distance: {error:.1%})"

    def __call__(self, tensors: Sequence[Tensor | None]) -> Tensor:
        total = zeros(self)
        for tensor, signs, shifts in zip(tensors, self._signs, self._shifts, strict=True):
            if tensor is None:
                continue
            flat = tensor.reshape(-1)
            unrolled = torch.zeros(2 * self.entries, dtype=self.dtype, device=self.device)
            for first in range(0, len(shifts), _BLOCKS):  # many at once: a kernel for each would keep a GPU waiting
                part = slice(first * self.entries, (first + _BLOCKS) * self.entries)
                signed = (flat[part] * signs[part]).to(self.dtype)
                places = self._columns + shifts[first : first + _BLOCKS, None]
                unrolled.index_add_(0, places.view(-1)[: len(signed)], signed)
            total += unrolled[: self.entries] + unrolled[self.entries :]
        return total


Projection = Whole | CountSketch  # a linear map from tensors, one per parameter, to a vector


def projection_of(parameters: Sequence[Tensor], storage: Storage, seed: int) -> Projection:
    size = sum(parameter.numel() for parameter in parameters)
    if storage == "sketch" or (storage == "auto" and size > EXACT_LIMIT):
        return CountSketch(parameters, seed=seed)
    return Whole(parameters)


def zeros(projection: Projection) -> Tensor:
    return torch.zeros(projection.entries, dtype=projection.dtype, device=projection.device)


@torch.no_grad()
def project(projection: Projection, tensors: Sequence[Tensor | None]) -> Tensor:
    """The vector of `tensors`, one per parameter; None counts as zeros. Embeddings may have sparse gradients."""
    return projection([t.to_dense() if t is not None and t.is_sparse else t for t in tensors])


def project_gradient(projection: Projection, parameters: Sequence[Tensor], loss: Callable[[], Tensor]) -> Tensor:
    """The vector of the gradient of `loss()`; `.grad` is not touched.

    Parameters that do not require a gradient, such as layers frozen during training, count as zeros.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    with torch.enable_grad():
        gradients = iter(torch.autograd.grad(loss(), trained, allow_unused=True))
    return project(projection, [next(gradients) if p.requires_grad else None for p in parameters])


class Vectors:
    """Vectors in memory, or in memory-mapped files in `folder`; then `state` has only their hashes."""

    def __init__(self, name: str, *, folder: Path | None = None) -> None:
        self._name = name
        self._folder = folder
        self._vectors: list[NDArray[Any]] = []
        self._digests: list[str] = []  # of the files in `folder`

    def __len__(self) -> int:
        return len(self._vectors)

    def __getitem__(self, index: int) -> NDArray[Any]:
        return self._vectors[index]

    def append(self, vector: Tensor) -> None:
        self._vectors.append(self._store(_array(vector)))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        stacked = {f"{self._name}.vectors": np.stack(self._vectors)} if self._vectors and self._folder is None else {}
        return {key: torch.from_numpy(array) for key, array in stacked.items()}, {"sha256": list(self._digests)}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self._vectors, self._digests = [], []
        for vector in tensors.get(f"{self._name}.vectors", ()):
            self._vectors.append(self._store(_array(vector)))
        for digest in facts["sha256"]:
            path = self._path()
            if not path.exists() or sha256(path) != digest:
                raise CorruptFileError(
                    f"{path} is missing or was changed since it was recorded. Restore it, or delete {self._folder} and "
                    "the checkpoint of this training to start again."
                )
            self._vectors.append(np.load(path, mmap_mode="r"))
            self._digests.append(digest)

    def _store(self, vector: NDArray[Any]) -> NDArray[Any]:
        if self._folder is None:
            return vector
        path = self._path()
        with atomic(path) as temporary, temporary.open("wb") as file:
            np.save(file, vector)
        self._digests.append(sha256(path))
        return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]

    def _path(self) -> Path:
        """The file of the next vector."""
        assert self._folder is not None  # noqa: S101
        return self._folder / f"{self._name}-{len(self._vectors):04d}.npy"


class Moments(Vectors):
    """Vectors with the squared distances between them and an origin (index 0; None means zero)."""

    def __init__(self, name: str, origin: Tensor | None, *, folder: Path | None = None) -> None:
        super().__init__(name, folder=folder)
        self.squared: Floats = np.zeros((1, 1))
        self._origin = None if origin is None else _array(origin)

    def append(self, vector: Tensor) -> None:
        new = _array(vector)
        row = [squared_distance(new, old) for old in (self._origin, *self._vectors)]
        grown = np.zeros((len(row) + 1, len(row) + 1))
        grown[:-1, :-1] = self.squared
        grown[-1, :-1] = grown[:-1, -1] = row
        self.squared = grown
        self._vectors.append(self._store(new))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, facts = super().state()
        tensors[f"{self._name}.squared"] = torch.from_numpy(self.squared.copy())
        if self._origin is not None:
            tensors[f"{self._name}.origin"] = torch.from_numpy(self._origin)
        return tensors, facts

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        super().restore(tensors, facts)
        self.squared = _array(tensors[f"{self._name}.squared"])
        if self._origin is not None:
            self._origin = _array(tensors[f"{self._name}.origin"])


def squared_distance(a: NDArray[Any], b: NDArray[Any] | None) -> float:
    """‖a − b‖²; None counts as zero."""
    return float(np.square(_difference(a, b)).sum())


def inner_product(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None = None) -> float:
    """⟨a, b − c⟩; None counts as zero."""
    return float(a.astype(np.float64) @ _difference(b, c))


def _difference(a: NDArray[Any], b: NDArray[Any] | None) -> Floats:
    wide: Floats = a.astype(np.float64)
    return wide if b is None else wide - b


def _array(vector: Tensor) -> NDArray[Any]:
    """A copy in memory."""
    return np.array(vector.detach().cpu().numpy())
