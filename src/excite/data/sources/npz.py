"""A user's own data are .npz files: a data set with x_train, y_train, x_test and y_test, or images alone."""

import contextlib
import lzma
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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

SUSPICIOUS_BYTES, SUSPICIOUS_RATIO = 2**28, 200  # larger and better compressed than any real images
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError)


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
        class_names = _class_names(archive["class_names"], path) if "class_names" in archive else ()
    train = Split(_images(x_train, "x_train", path), _labels(y_train, "y_train", path))
    test = Split(_images(x_test, "x_test", path), _labels(y_test, "y_test", path))
    num_classes = len(class_names) or 1 + max(train.largest_label, test.largest_label)
    return Dataset(name or path.stem, train, test, num_classes, class_names)


def _class_names(array: NDArray[Any], path: Path) -> tuple[str, ...]:
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise InputError(
            f"class_names in {path} must be strings in one row, such as numpy.array(['cat', 'dog']); "
            f"they are {array.dtype} of shape {array.shape}."
        )
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in array)


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
    """The arrays of a file, each read when it is asked for; pickles and bombs are refused."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise CorruptFileError(f"{path} is damaged or no .npz file. Make it again.")
    try:
        with zipfile.ZipFile(path) as archive:
            yield _Arrays(archive, path)
    except _DAMAGE as error:
        raise CorruptFileError(f"{path} is damaged ({error}). Make it again.") from error


class _Arrays(Mapping[str, NDArray[np.generic]]):
    """What an archive holds; an array is read only if the archive has as many bytes as the array's header claims."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive, self._path = archive, path
        self._members = {
            member.filename.removesuffix(".npy"): member
            for member in archive.infolist()
            if member.filename.endswith(".npy")
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, key: str) -> NDArray[np.generic]:
        member = self._members[key]
        self._check_size(key, member)
        try:
            with self._archive.open(member) as file:
                shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
                claimed, there = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        except (ValueError, KeyError) as error:
            raise CorruptFileError(f"{key} in {self._path} is no numpy array ({error}). Make it again.") from error
        if dtype.hasobject:
            raise InputError(f"{key} in {self._path} was refused. Save plain numpy arrays; pickles are never read.")
        if claimed != there or min(shape, default=0) < 0:
            raise CorruptFileError(f"{key} in {self._path} claims {claimed:,} bytes and has {there:,}. Make it again.")
        with self._archive.open(member) as file:
            array: NDArray[np.generic] = np.lib.format.read_array(file, allow_pickle=False)
        return array

    def _check_size(self, key: str, member: zipfile.ZipInfo) -> None:
        if member.file_size > SUSPICIOUS_BYTES and member.file_size > SUSPICIOUS_RATIO * member.compress_size:
            raise CorruptFileError(
                f"{key} in {self._path} would grow from {member.compress_size:,} to {member.file_size:,} bytes, as no "
                "real images do: it was refused. Save them uncompressed, with numpy.savez, if they are real."
            )
        if member.file_size > largest_array():
            raise InputError(
                f"{key} in {self._path} has {member.file_size:,} bytes, more than half of this machine's memory. "
                "Save fewer or smaller images."
            )


def largest_array() -> int:
    """Half of this machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


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
