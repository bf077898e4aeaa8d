"""A `Recorder` fills a `Trace`: the distances and slopes of a run, a few kilobytes for a model of any size."""

import hashlib
import json
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from excite.errors import CorruptFileError
from excite.files import write_bytes
from excite.lazy import lazily

if TYPE_CHECKING:
    from excite.trace.probe import Curvature, Probe, largest_curvature
    from excite.trace.recorder import Recorder

__all__ = ["Curvature", "Probe", "Recorder", "Trace", "largest_curvature"]

__getattr__ = lazily(
    __name__, {"Curvature": "probe", "largest_curvature": "probe", "Probe": "probe", "Recorder": "recorder"}
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_FORMAT = "excite-trace-1"
_OPTIONAL = {"squared_input_gradient_distances", "batch_statistics"}  # not in the file if not recorded
_no_floats = partial(np.zeros, 0)
_no_integers = partial[Integers](np.zeros, 0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Trace:
    """T moments of a run (ends of epochs), slopes of sampled steps, and curvatures at some of the moments.

    Squared distances are (T+1)×(T+1) matrices. Index 0 is the origin (the zero gradient, the initial parameters θ_0),
    index i + 1 is moment i. `facts` describes how they were computed: which gradient, exact or sketched, seed, sizes.

    >>> moved = np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]])  # θ₀ and two moments on a line, 1 apart
    >>> trace = Trace(moved, moved, steps=np.array([10, 20]))
    >>> len(trace), float(trace.parameter_distances[0, 1])
    (2, 1.0)
    """

    squared_gradient_distances: Floats
    squared_parameter_distances: Floats
    steps: Integers = field(default_factory=_no_integers)  # optimizer steps taken before each moment
    learning_rates: Floats = field(default_factory=_no_floats)  # at each moment; NaN without an optimizer
    slopes: Floats = field(default_factory=_no_floats)
    slope_steps: Integers = field(default_factory=_no_integers)
    slope_learning_rates: Floats = field(default_factory=_no_floats)
    curvatures: Floats = field(default_factory=_no_floats)
    curvature_residuals: Floats = field(default_factory=_no_floats)
    curvature_steps: Integers = field(default_factory=_no_integers)
    facts: dict[str, Any] = field(default_factory=dict)
    squared_input_gradient_distances: Floats = field(default_factory=_no_floats)  # empty if not recorded
    batch_statistics: Floats = field(default_factory=_no_floats)  # one row per moment: see `BatchStatistics`

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def gradient_distances(self) -> Floats:
        return np.sqrt(self.squared_gradient_distances[1:, 1:])

    @property
    def input_gradient_distances(self) -> Floats:
        return np.sqrt(self.squared_input_gradient_distances[1:, 1:])

    @property
    def parameter_distances(self) -> Floats:
        return np.sqrt(self.squared_parameter_distances[1:, 1:])

    @property
    def gradient_norms(self) -> Floats:
        norms: Floats = np.sqrt(self.squared_gradient_distances[0, 1:])
        return norms

    @property
    def cosine_error(self) -> float:
        """Standard error of a cosine near 0 between differences of moments; 0 if vectors were exact."""
        return float(self.facts.get("cosine_error", 0.0))

    def __str__(self) -> str:
        facts = (
            f"{len(self)} moments, {len(self.slopes)} local slopes and {len(self.curvatures)} curvatures; "
            f"{self.facts.get('gradient', 'unknown')} gradients, {self.facts.get('storage', 'unknown storage')}."
        )
        return " ".join([facts, *self.facts.get("problems", ())])

    def save(self, path: Path | str) -> None:
        """Write one safetensors file with the facts as JSON in its header, and a hash of both."""
        arrays = {
            each.name: np.ascontiguousarray(getattr(self, each.name)) for each in fields(self) if each.name != "facts"
        }
        arrays = {name: array for name, array in arrays.items() if array.size or name not in _OPTIONAL}
        facts = json.dumps(self.facts, sort_keys=True)
        metadata = {"format": _FORMAT, "facts": facts, "sha256": _digest(arrays, facts)}
        write_bytes(Path(path), save(arrays, metadata=metadata))

    @classmethod
    def load(cls, path: Path | str) -> "Trace":
        path = Path(path)
        cure = "Restore the original file, or delete it and record it again."
        if not path.exists():
            raise CorruptFileError(f"There is no trace at {path}. Train with a Recorder and save recorder.trace there.")
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, OSError) as error:
            raise CorruptFileError(f"{path} is not a trace ({error}). {cure}") from error
        if metadata.get("format") != _FORMAT or set(arrays) | _OPTIONAL != {f.name for f in fields(cls)} - {"facts"}:
            raise CorruptFileError(f"{path} is not a trace. {cure}")
        facts = metadata.get("facts", "")
        if metadata.get("sha256") != _digest(arrays, facts):
            raise CorruptFileError(f"{path} does not match its hash. {cure}")
        return cls(**arrays, facts=json.loads(facts))


def _digest(arrays: dict[str, NDArray[Any]], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
