from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from excite import data
from excite.errors import CorruptFileError, InputError

RNG = np.random.default_rng(0)
NHWC = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 3, 0, 1], dtype=np.uint8)


def save(path: Path, images: NDArray[np.generic] = NHWC, labels: NDArray[np.generic] = LABELS) -> Path:
    np.savez_compressed(path, x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
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
        (NHWC / 255, LABELS, r"\* 255\)\.round\(\)\.astype\('uint8'\)"),
        (np.zeros((6, 3, 5, 3), np.uint8), LABELS, "could be the second or the last.*from_tensors"),
        (np.zeros((6, 5, 5, 4), np.uint8), LABELS, "neither the second nor the last.*from_tensors"),
        (np.zeros((6, 784), np.uint8), LABELS, "N×H×W"),
        (NHWC, LABELS.astype(np.float32), "whole numbers"),
        (NHWC, LABELS[:5], "as many labels"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_the_cure(
    images: NDArray[np.generic], labels: NDArray[np.generic], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        data.load(save(tmp_path / "mine.npz", images, labels))


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=NHWC, y_train=LABELS)
    with pytest.raises(InputError, match="lacks x_test, y_test"):
        data.load(tmp_path / "mine.npz")


def test_python_objects_are_never_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=np.array([{}]), y_train=LABELS, x_test=NHWC, y_test=LABELS)
    with pytest.raises(InputError, match="pickles are never read"):
        data.load(tmp_path / "mine.npz")


@pytest.mark.parametrize("keep", [0, 5, 200, -30])
def test_a_damaged_file_is_named(keep: int, tmp_path: Path) -> None:
    path = save(tmp_path / "mine.npz")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptFileError, match=r"mine\.npz is damaged"):
        data.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*absent\.npz"):
        data.load(tmp_path / "absent.npz")
