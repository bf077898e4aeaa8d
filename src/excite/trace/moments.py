"""Distances between the moments of a run: each new vector is compared with every earlier one, then only kept for that.

Squared distances are taken from differences, entry by entry in float64. The textbook way, from inner products,
loses half of the digits where two moments nearly coincide.
"""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from excite.errors import CorruptFileError
from excite.files import atomic, sha256

Floats = NDArray[np.float64]

MEMORY_LIMIT = 512 * 2**20  # bytes of vectors; more of them go to disk
_CHUNK = 2**20


class Moments:
    """Squared distances between an origin (index 0; None: zero) and the vectors appended so far.

    Vectors stay in memory up to `memory_limit` bytes, then go to memory-mapped files that vanish with this object.
    With a `folder` they are files there from the first one on, and `state` only names them.
    """

    def __init__(
        self, name: str, origin: Tensor | None, *, folder: Path | None = None, memory_limit: int = MEMORY_LIMIT
    ) -> None:
        self.squared: Floats = np.zeros((1, 1))
        self._name = name
        self._origin = None if origin is None else _array(origin)
        self._folder = folder
        self._memory_limit = memory_limit
        self._temporary: Path | None = None
        self._vectors: list[NDArray[Any]] = []
        self._digests: list[str] = []  # of the files in `folder`

    def __len__(self) -> int:
        return len(self._vectors)

    def append(self, vector: Tensor) -> None:
        new = _array(vector)
        row = [squared_distance(new, old) for old in (self._origin, *self._vectors)]
        grown = np.zeros((len(row) + 1, len(row) + 1))
        grown[:-1, :-1] = self.squared
        grown[-1, :-1] = grown[:-1, -1] = row
        self.squared = grown
        self._vectors.append(self._kept(new))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        arrays: dict[str, NDArray[Any]] = {"squared": self.squared.copy()}
        if self._origin is not None:
            arrays["origin"] = self._origin
        if self._vectors and self._folder is None:
            arrays["vectors"] = np.stack(self._vectors)
        tensors = {f"{self._name}.{key}": torch.from_numpy(array) for key, array in arrays.items()}
        return tensors, {"sha256": list(self._digests)}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.squared = _array(tensors[f"{self._name}.squared"])
        self._vectors, self._digests = [], []
        if self._origin is not None:
            self._origin = _array(tensors[f"{self._name}.origin"])
        for vector in tensors.get(f"{self._name}.vectors", ()):
            self._vectors.append(self._kept(_array(vector)))
        for digest in facts["sha256"]:
            path = self._path(len(self._vectors))
            if not path.exists() or sha256(path) != digest:
                raise CorruptFileError(
                    f"{path} is missing or not as it was recorded. Put it back, or delete the run to start it again."
                )
            self._vectors.append(np.load(path, mmap_mode="r"))
            self._digests.append(digest)

    def _kept(self, vector: NDArray[Any]) -> NDArray[Any]:
        if self._folder is None and (len(self._vectors) + 1) * vector.nbytes <= self._memory_limit:
            return vector
        path = self._path(len(self._vectors))
        with atomic(path) as temporary, temporary.open("wb") as file:
            np.save(file, vector)
        if self._folder is not None:
            self._digests.append(sha256(path))
        mapped: NDArray[Any] = np.load(path, mmap_mode="r")
        return mapped

    def _path(self, index: int) -> Path:
        if self._folder is not None:
            return self._folder / f"{self._name}-{index:04d}.npy"
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="excite-trace-"))
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary / f"{self._name}-{index:04d}.npy"


def squared_distance(a: NDArray[Any], b: NDArray[Any] | None) -> float:
    """‖a − b‖² in float64, a chunk at a time; None is zero."""
    total = 0.0
    for start in range(0, len(a), _CHUNK):
        part = slice(start, start + _CHUNK)
        difference = a[part].astype(np.float64)
        if b is not None:
            difference -= b[part]
        total += float(np.square(difference, out=difference).sum())
    return total


def _array(vector: Tensor) -> NDArray[Any]:
    """A copy of its own, in memory."""
    return np.array(vector.detach().cpu().numpy())
