import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from excite import data
from excite.errors import CorruptFileError, InputError

RNG = np.random.default_rng(0)
NHWC = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 3, 0, 1], dtype=np.uint8)


def save(path: Path, images: NDArray[np.generic] = NHWC, labels: NDArray[np.generic] = LABELS, **more: Any) -> Path:
    np.savez_compressed(path, x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2], **more)
    return path


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (NHWC, NHWC.transpose(0, 3, 1, 2)),
        (NHWC.transpose(0, 3, 1, 2), NHWC.transpose(0, 3, 1, 2)),
        (NHWC[..., :1], NHWC[..., :1].transpose(0, 3, 1, 2)),
        (NHWC[..., 0], NHWC[:, None, :, :, 0]),
    ],
)
def test_every_usual_layout_becomes_nchw(
    images: NDArray[np.uint8], expected: NDArray[np.uint8], tmp_path: Path
) -> None:
    dataset = data.load(save(tmp_path / "mine.npz", images))
    assert np.array_equal(dataset.train.images.numpy(), expected)
    assert dataset.train.images.is_contiguous()
    assert dataset.train.labels.tolist() == LABELS.tolist()
    assert dataset.train.labels.dtype == torch.int64
    assert len(dataset.test) == 2
    assert dataset.num_classes == 4
    assert dataset.name == "mine"


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    assert len(data.load(str(save(tmp_path / "mine.npz"))).train) == 6


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (NHWC / 255, LABELS, "uint8"),
        (np.zeros((6, 5, 5, 4), np.uint8), LABELS, "permute"),
        (np.zeros((6, 784), np.uint8), LABELS, "N×H×W"),
        (NHWC, LABELS.astype(np.float32), "integers"),
        (NHWC, LABELS[:5], "labels"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_the_cure(
    images: NDArray[np.generic], labels: NDArray[np.generic], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        data.load(save(tmp_path / "mine.npz", images, labels))


@pytest.mark.parametrize("kind", [str, bytes])
def test_class_names_are_text_or_bytes(kind: type, tmp_path: Path) -> None:
    names = np.array(["cat", "dog", "elk", "fox"]).astype(np.dtype(kind))
    save(tmp_path / "mine.npz", class_names=names)
    assert data.load(tmp_path / "mine.npz").class_names == ("cat", "dog", "elk", "fox")


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=NHWC, y_train=LABELS)
    with pytest.raises(InputError, match="x_test, y_test"):
        data.load(tmp_path / "mine.npz")


def test_python_objects_are_never_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=np.array([{}]), y_train=LABELS, x_test=NHWC, y_test=LABELS)
    with pytest.raises(CorruptFileError, match=r"mine\.npz"):
        data.load(tmp_path / "mine.npz")


@pytest.mark.parametrize("keep", [0, 5, 200, -30])
def test_a_damaged_file_is_named(keep: int, tmp_path: Path) -> None:
    path = save(tmp_path / "mine.npz")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptFileError, match=r"mine\.npz"):
        data.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.npz"):
        data.load(tmp_path / "absent.npz")


def header(shape: str, kind: str = "|u1") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


MEMBERS = {
    "no array": b"just text",
    "nothing": b"",
    "a header of 784 TB": header("(1000000000000, 28, 28)") + bytes(784),
    "a header below zero": header("(-1, 28, 28)") + bytes(784),
    "a header that is code": header("__import__('os').getpid()"),
    "too few bytes": header("(2, 28, 28)") + bytes(784),
    "an unknown version": b"\x93NUMPY\x09\x00" + bytes(100),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members_that_are_no_arrays_are_refused_in_little_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", MEMBERS[name])
        for key, array in (("y_train", LABELS), ("x_test", NHWC), ("y_test", LABELS)):
            with archive.open(f"{key}.npy", "w") as file:
                np.save(file, array)
    with pytest.raises(CorruptFileError, match=r"mine\.npz"):
        data.load(path)


def test_a_bomb_is_refused_unopened(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    piece = bytes(2**20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x_train.npy", "w") as file:
        file.write(header(f"({300 * 2**20}, 1, 1)"))
        for _ in range(300):
            file.write(piece)
    np.savez(tmp_path / "rest.npz", y_train=LABELS, x_test=NHWC, y_test=LABELS)
    with zipfile.ZipFile(tmp_path / "rest.npz") as rest, zipfile.ZipFile(path, "a") as archive:
        for member in rest.namelist():
            archive.writestr(member, rest.read(member))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptFileError, match=r"numpy\.savez"):
        data.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_huge_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="num_classes"):
        data.load(save(tmp_path / "mine.npz", labels=LABELS.astype(np.int64) + 2**40))
