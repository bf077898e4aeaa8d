"""Hostile files handed to commands: an error that names the file, nothing executed, nothing outside, little memory."""

import io
import json
import os
import pickle
import resource
import shlex
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from excite.cli import main
from tests.test_bad_input import contents

MOST = 300_000  # kB that a refusal may take
DIGITS, LABELS = np.zeros((4, 28, 28), np.uint8), np.array([0, 1, 2, 3])


class Evil:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, ("harm",)


def array(content: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, content)  # type: ignore[arg-type]
    return buffer.getvalue()


def header(shape: str, kind: str = "|u1") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz(x_train: bytes, **others: object) -> bytes:
    """A data set whose first array is what it is given as."""
    arrays: dict[str, Any] = {"y_train": LABELS, "x_test": DIGITS, "y_test": LABELS, **others}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", x_train)
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", array(content))
    return buffer.getvalue()


def tensors(header: object, rest: bytes = b"") -> bytes:
    """A file of safetensors with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


F32 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
WEIGHTS = "attack --with pgd --eps 0.1 --model lenet5 --data mnist-sample --weights FILE"
DATA = "run tiny.toml --set data.name=FILE"
MORE = "run tiny.toml --set data.unlabelled=FILE --set training.objective.kind=rst"

# The file's name, how it is made, the command that meets it.
CASES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "TOML of 10 MB": ("x.toml", lambda: b'name = "' + b"a" * 10_000_000 + b'"', "run FILE"),
    "TOML in TOML": ("x.toml", lambda: b"x = " + b"[" * 100_000, "run FILE"),
    "tables in tables": ("x.toml", lambda: b"[" + b"a." * 50_000 + b"a]", "run FILE"),
    "TOML with codes": ("x.toml", lambda: b'name = "\\u001b[31mred"', "run FILE"),
    "TOML with NUL": ("x.toml", lambda: b"name = \x00", "run FILE"),
    "a pickle as weights": ("w.pt", lambda: pickle.dumps(Evil()), WEIGHTS),
    "a pickle in an archive of weights": ("w.pt", lambda: saved({"x": Evil()}), WEIGHTS),
    "weights that are a list": ("w.pt", lambda: saved([torch.zeros(2)]), WEIGHTS),
    "weights that are words": ("w.pt", lambda: saved({"conv.weight": "heavy"}), WEIGHTS),
    "weights that are a number": ("w.pt", lambda: saved(3), WEIGHTS),
    "weights by number": ("w.pt", lambda: saved({1: torch.zeros(2)}), WEIGHTS),
    "a state_dict that is a number": ("w.pt", lambda: saved({"state_dict": 5}), WEIGHTS),
    "no weights": ("w.pt", lambda: b"", WEIGHTS),
    "a header of 8 EB": ("w.safetensors", lambda: struct.pack("<Q", 2**63) + b"{}", WEIGHTS),
    "a header that is no JSON": ("w.safetensors", lambda: tensors(b"{" * 1000), WEIGHTS),
    "offsets beyond the file": ("w.safetensors", lambda: tensors({"a": F32 | {"data_offsets": [0, 2**50]}}), WEIGHTS),
    "a shape beyond all memory": (
        "w.safetensors",
        lambda: tensors({"a": F32 | {"shape": [2**60]}}, bytes(16)),
        WEIGHTS,
    ),
    "offsets that overlap": ("w.safetensors", lambda: tensors({"a": F32, "b": F32}, bytes(16)), WEIGHTS),
    "names with codes": ("w.safetensors", lambda: tensors({"\x1b[31ma": F32}, bytes(16)), WEIGHTS),
    "a header of 784 TB": ("x.npz", lambda: npz(header("(1000000000000, 28, 28)") + bytes(784)), DATA),
    "a bomb": ("x.npz", lambda: npz(header("(400000, 28, 28)") + bytes(784 * 400_000)), DATA),
    "an array of objects": ("x.npz", lambda: npz(array(np.array([Evil()]))), DATA),
    "labels of 2^40": ("x.npz", lambda: npz(array(DIGITS), y_train=LABELS + 2**40), DATA),
    "labels below zero": ("x.npz", lambda: npz(array(DIGITS), y_train=LABELS - 9), DATA),
    "no archive": ("x.npz", lambda: b"PK\x03\x04" + bytes(100), DATA),
    "a pickle as images": ("x.pickle", lambda: pickle.dumps(Evil()), MORE),
    "a pickle of 1 TB": ("x.pickle", lambda: b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.", MORE),
    "a pickle of many memories": ("x.pickle", lambda: b"\x80\x04Nr" + struct.pack("<I", 2**32 - 1) + b".", MORE),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_experiment: str) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "tiny.toml").write_text(tiny_experiment, encoding="utf-8")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_file(
    case: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, make, command = CASES[case]
    file = place / name
    file.write_bytes(make())
    monkeypatch.chdir(place)
    monkeypatch.setenv("EXCITE_DATA", str(place / "data"))
    before, memory = contents(place), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command.replace("FILE", name)))
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    said = capsys.readouterr()
    assert ended.value.code in (2, 4, 5), said.err
    assert "Traceback" not in said.err
    assert "\x1b" not in said.err
    assert said.out == ""
    shutil.rmtree(place / "runs", ignore_errors=True)  # a folder of its own, for a file that is read late
    assert contents(place) == before
    assert taken < MOST, f"{taken:,} kB"
    file.unlink()
