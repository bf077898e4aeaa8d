"""A user's own data are .npz files: a data set with x_train, y_train, x_test and y_test, or images alone."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from excite.data.dataset import Dataset, Split
from excite.errors import CorruptFileError, InputError

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_IMAGES = ("x", "x_train", "images", "image")
_LABELS = ("y", "y_train", "labels", "label")
_CHANNELS = (1, 3)


def load_npz(path: Path, *, name: str | None = None) -> Dataset:
    """Images are uint8, N×H×W, N×H×W×C or N×C×H×W with 1 or 3 channels; labels are whole numbers from 0.

    `class_names`, a string for each class, may be there too.
    """
    with open_npz(path) as archive:
        if missing := [key for key in _KEYS if key not in archive]:
            raise InputError(
                f"{path} lacks {', '.join(missing)}. Save it with "
                "numpy.savez_compressed(path, x_train=…, y_train=…, x_test=…, y_test=…)."
            )
        x_train, y_train, x_test, y_test = (archive[key] for key in _KEYS)
        class_names = tuple(map(str, archive["class_names"])) if "class_names" in archive else ()
    train = Split(_images(x_train, "x_train", path), _labels(y_train, "y_train", path))
    test = Split(_images(x_test, "x_test", path), _labels(y_test, "y_test", path))
    num_classes = len(class_names) or 1 + max(train.largest_label, test.largest_label)
    return Dataset(name or path.stem, train, test, num_classes, class_names)


def load_images(path: Path) -> tuple[Tensor, Tensor | None]:
    """The images `x` and, if they are there, the labels `y`; other usual names of the two are understood too."""
    with open_npz(path) as archive:
        key, label_key = next((key for key in _IMAGES if key in archive), None), label_name(archive)
        if key is None:
            raise InputError(f"{path} holds no images. Save them with numpy.savez_compressed(path, x=…), uint8.")
        images, labels = archive[key], None if label_key is None else archive[label_key]
    return _images(images, key, path), None if labels is None else _labels(labels, str(label_key), path)


def label_name(archive: Mapping[str, object]) -> str | None:
    """What the labels are called in the archive, if it has any."""
    return next((key for key in _LABELS if key in archive), None)


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Mapping[str, NDArray[np.generic]]]:
    """The arrays of a file, each read when it is asked for; pickles are refused."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise CorruptFileError(f"{path} is damaged or no .npz file. Make it again.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise CorruptFileError(f"{path} is damaged ({error}). Make it again.") from error
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path} was refused ({error}). Save plain numpy arrays; pickles are never read.") from error


def _images(array: NDArray[np.generic], key: str, path: Path) -> Tensor:
    if array.dtype != np.uint8:
        raise InputError(
            f"{key} in {path} must be uint8, 0 to 255, not {array.dtype}. "
            f"From floats in [0, 1]: {key} = ({key} * 255).round().astype('uint8')."
        )
    if array.ndim == 3:
        return torch.from_numpy(array).unsqueeze(1)
    if array.ndim != 4:
        raise InputError(f"{key} in {path} must be N×H×W, N×H×W×C or N×C×H×W, not of shape {array.shape}.")
    first, last = array.shape[1] in _CHANNELS, array.shape[3] in _CHANNELS
    if first and last:
        raise InputError(
            f"{key} in {path} has shape {array.shape}: the channels could be the second or the last dimension. "
            "Use excite.data.from_tensors, which takes N×C×H×W only."
        )
    if not first and not last:
        raise InputError(
            f"{key} in {path} has shape {array.shape}: neither the second nor the last dimension is 1 or 3 channels. "
            "For another number of channels use excite.data.from_tensors, which takes N×C×H×W."
        )
    return torch.from_numpy(array if first else np.ascontiguousarray(array.transpose(0, 3, 1, 2)))


def _labels(array: NDArray[np.generic], key: str, path: Path) -> Tensor:
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{key} in {path} must hold whole numbers, not {array.dtype}: class numbers from 0.")
    return torch.from_numpy(array.astype(np.int64))
