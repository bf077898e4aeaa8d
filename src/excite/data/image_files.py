"""Read images from files of users: .npz archives and RST's pickle; no code in a file is ever run."""

import contextlib
import lzma
import mmap
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from excite.data.dataset import Dataset, Split, from_tensors
from excite.errors import CorruptFileError, InputError

# The keys of an .npz file: of a data set, and of images alone (the first one that is there).
_DATASET_KEYS = ("x_train", "y_train", "x_test", "y_test")
_IMAGE_KEYS = ("x", "x_train", "images", "image")
_LABEL_KEYS = ("y", "y_train", "labels", "label")

SUSPICIOUS_BYTES, SUSPICIOUS_RATIO = 2**28, 200  # larger and better compressed than real images
# What reading a damaged file can raise.
_BAD_PICKLE = (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
_BAD_NPZ = (*_BAD_PICKLE, OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
_INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")

Archive = Mapping[str, Any]  # of arrays, which Split and Unlabelled check


def load_npz(path: Path) -> Dataset:
    """Load a data set from the arrays x_train, y_train, x_test and y_test, and optionally class_names.

    Images are uint8, N×H×W, N×H×W×C or N×C×H×W with 1 or 3 channels; labels are integers from 0.
    """
    with open_npz(path) as archive:
        if missing := [key for key in _DATASET_KEYS if key not in archive]:
            raise InputError(
                f"There is no {', '.join(missing)}. Save the data set with "
                "numpy.savez_compressed(path, x_train=…, y_train=…, x_test=…, y_test=…)."
            )
        x_train, y_train, x_test, y_test = (archive[key] for key in _DATASET_KEYS)
        class_names = archive.get("class_names", np.array([], dtype=str))
        if class_names.ndim != 1 or class_names.dtype.kind not in "US":
            raise InputError("class_names must be an array of strings, such as numpy.array(['cat', 'dog']).")
        names = class_names.astype(str).tolist()
        x_train, x_test = _channels_first(x_train), _channels_first(x_test)
        return from_tensors(x_train, y_train, x_test, y_test, name=path.stem, class_names=names)


def load_images(path: Path) -> tuple[Any, Any | None]:
    """Load the images `x` and, if there are any, the labels `y`; other common names of the two are accepted."""
    with open_npz(path) as archive:
        key, label_key = next((key for key in _IMAGE_KEYS if key in archive), None), label_name(archive)
        if key is None:
            raise InputError("There are no images. Save them with numpy.savez_compressed(path, x=…), uint8.")
        return _channels_first(archive[key]), None if label_key is None else archive[label_key]


def label_name(archive: Archive) -> str | None:
    """Return the key of the labels in the archive, if it has any."""
    return next((key for key in _LABEL_KEYS if key in archive), None)


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Archive]:
    """Open an .npz file; its arrays are read when they are accessed. Pickles and zip bombs are refused.

    An InputError that is raised inside names the file.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            packed = sum(member.compress_size for member in archive.zip.infolist())
            size = sum(member.file_size for member in archive.zip.infolist())
            if size > SUSPICIOUS_BYTES and size > SUSPICIOUS_RATIO * packed:
                raise CorruptFileError(
                    f"{path} was refused: it would expand from {packed:,} to {size:,} bytes, unlike real images. "
                    "If they are real, save them uncompressed with numpy.savez."
                )
            yield archive
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except CorruptFileError:
        raise
    except _BAD_NPZ as error:
        raise CorruptFileError(f"{path} is damaged or not an .npz file of plain arrays ({error}).") from error


def _channels_first(images: Any) -> Any:
    """Return N×H×W or N×H×W×C images as N×C×H×W."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        return images  # which Split refuses
    first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
    if first == last:
        raise InputError(
            f"The channels of images of shape {images.shape} are unclear: 1 or 3 of them must be the second or the "
            "last dimension, and not both. Use excite.data.from_tensors, which takes N×C×H×W."
        )
    return images if first else images.transpose(0, 3, 1, 2)


def load_pseudo_labelled(path: str | Path) -> Split:
    """Return RST's 500,000 pseudo-labelled tiny images, from its file `ti_500K_pseudo_labeled.pickle`.

    The result is a Split, not a Dataset: the images are extra training images for CIFAR-10. The pickle holds a dict
    with `data`, uint8, N×32×32×3, and `extrapolated_targets`, N labels. No code in the pickle is run.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"There is no file {path}. `excite data fetch ti_500K_pseudo_labeled.pickle` gets RST's.")
    try:
        # A memory map never returns more bytes than the file has, however many the pickle announces.
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            contents = _ArraysOnly(mapped, allowance=len(mapped)).load()
    except pickle.UnpicklingError as error:
        raise CorruptFileError(f"{path} was refused: {error}. A pickle may contain numpy arrays only.") from error
    except _BAD_PICKLE as error:
        raise CorruptFileError(f"{path} is not a complete pickle ({error}). Download it again.") from error
    if not isinstance(contents, dict) or not {"data", "extrapolated_targets"} <= contents.keys():
        raise InputError(f"{path} is not RST's file, which has the keys 'data' and 'extrapolated_targets'.")
    images, labels = _array(contents["data"]), _array(contents["extrapolated_targets"])
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise InputError(f"'data' in {path} must be uint8, N×H×W×3, not {images.dtype} of shape {images.shape}.")
    return Split(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels.astype(np.int64)))


def _array(value: object) -> NDArray[np.generic]:
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return np.array(value, dtype=np.int64)
    raise InputError(f"RST's file contains arrays of integers; this one contains a {type(value).__name__}.")


class _DType:
    """Replaces numpy.dtype; accepts integer types only."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in _INTEGERS:
            raise pickle.UnpicklingError(f"it contains an array of type {code!r}, not of integers")
        self.code = code
        self.byte_order = "<"

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.byte_order = ">" if state[1] == ">" else "<"


class _Array:
    """Replaces numpy.ndarray and the functions that create one, empty (for `__setstate__` to fill) or from a buffer."""

    values: NDArray[np.generic] = np.empty(0, np.uint8)

    def __init__(self, contents: bytes = b"", dtype: _DType | None = None, shape: object = (), order: str = "") -> None:
        if isinstance(dtype, _DType):
            self.__setstate__((1, shape, dtype, order == "F", contents))

    def __setstate__(self, state: tuple[int, Any, _DType, bool, bytes]) -> None:
        _, shape, dtype, fortran_order, contents = state
        flat = np.frombuffer(contents, dtype.byte_order + dtype.code)
        self.values = flat.reshape(shape, order="F" if fortran_order else "C")


class _ArraysOnly(pickle._Unpickler):  # in Python: the one in C allocates memory before it reads
    """Imports nothing: a name in the pickle is replaced or refused. Text expands to at most `allowance` bytes."""

    def __init__(self, contents: mmap.mmap, allowance: int) -> None:
        super().__init__(contents)
        self._allowance = allowance

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        match module.replace("numpy._core.", "numpy.core."), name:
            case (
                ("numpy", "ndarray") | ("numpy.core.multiarray", "_reconstruct") | ("numpy.core.numeric", "_frombuffer")
            ):
                return _Array
            case "numpy", "dtype":
                return _DType
            case "_codecs", "encode":  # how pickles of protocol 2 contain bytes
                return self._encode
        raise pickle.UnpicklingError(f"it uses {module}.{name}")

    def _encode(self, text: str, _encoding: str) -> bytes:
        self._allowance -= len(text)
        if self._allowance < 0:
            raise pickle.UnpicklingError("it would expand to more bytes than the file has")
        return text.encode("latin1")
