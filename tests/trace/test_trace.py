"""A trace comes back from disk as it went there, or says that it did not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excite.errors import CorruptFileError
from excite.trace import Trace


def example(moments: int = 5) -> Trace:
    rng = np.random.default_rng(0)
    gradients, parameters = rng.normal(size=(moments + 1, 30)), rng.normal(size=(moments + 1, 30))
    gradients[0] = 0
    return Trace(
        squared_gradient_distances=((gradients[:, None] - gradients) ** 2).sum(-1),
        squared_parameter_distances=((parameters[:, None] - parameters) ** 2).sum(-1),
        steps=np.arange(1, moments + 1) * 10,
        learning_rates=np.full(moments, 0.1),
        slopes=rng.random(7),
        slope_steps=np.arange(7),
        slope_learning_rates=np.full(7, 0.1),
        facts={"gradient": "epoch_mean", "storage": "exact", "seed": 3},
    )


@pytest.mark.parametrize("inputs", [{}, {"squared_input_gradient_distances": np.eye(6)}])
def test_save_and_load(tmp_path: Path, inputs: dict[str, Any]) -> None:
    trace = replace(example(), **inputs)
    trace.save(tmp_path / "run.trace")
    loaded = Trace.load(tmp_path / "run.trace")
    for name, value in vars(trace).items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, getattr(loaded, name)), name
            assert value.dtype == getattr(loaded, name).dtype
    assert loaded.facts == trace.facts
    assert "5 moments, 7 local slopes" in str(loaded)


def test_the_longest_run_of_the_paper_takes_kilobytes(tmp_path: Path) -> None:
    example(164).save(str(tmp_path / "run.trace"))
    assert (tmp_path / "run.trace").stat().st_size < 600_000


def test_gradient_norms_are_distances_from_zero() -> None:
    gradients = np.random.default_rng(0).normal(size=(6, 30))
    np.testing.assert_allclose(example().gradient_norms, np.linalg.norm(gradients[1:], axis=1))


@pytest.mark.parametrize("position", [-1, -100, 200])
def test_detects_a_flipped_byte(tmp_path: Path, position: int) -> None:
    path = tmp_path / "run.trace"
    example().save(path)
    contents = bytearray(path.read_bytes())
    contents[position] ^= 0x40
    path.write_bytes(contents)
    with pytest.raises(CorruptFileError):
        Trace.load(path)


def test_errors_name_a_truncated_missing_or_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    with pytest.raises(CorruptFileError, match="no trace"):
        Trace.load(path)
    example().save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorruptFileError, match="not a trace"):
        Trace.load(path)
    path.write_bytes(b"something else")
    with pytest.raises(CorruptFileError, match="not a trace"):
        Trace.load(path)
