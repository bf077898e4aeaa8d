"""RST's file of 500,000 pseudo-labelled tiny images: where it is published, and how it is read without running code.

Its authors publish no hash, so it is checked by what it holds.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from excite.data.dataset import Split
from excite.data.sources import fetched
from excite.errors import CorruptFileError, DataUnavailableError, InputError
from excite.files import locked

RST_FILE = "ti_500K_pseudo_labeled.pickle"
N_IMAGES = 500_000
_IDENTIFIER = "1LTw3Sb5QoiCCN-6Y5PEKkq9C9W60w-Hi"
ADDRESS = f"https://drive.google.com/open?id={_IDENTIFIER}"  # as in the README of github.com/yaircarmon/semisup-adv
_DIRECT = f"https://drive.usercontent.google.com/download?id={_IDENTIFIER}&export=download&confirm=t"

_INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")


def cure(directory: Path) -> str:
    return (
        f"`excite data fetch {RST_FILE}` downloads it (about 1.5 GB). Or download it from {ADDRESS} yourself, and put "
        f"it into {directory}, or where you give the command."
    )


def fetch_tiny_images(directory: Path, address: str = _DIRECT) -> Path:
    """Download the file into the data directory unless it is there, and check it; return its path."""
    path = directory / RST_FILE
    with locked(path):
        try:
            fetched(address, path, None)
        except (OSError, ValueError) as error:
            raise DataUnavailableError(f"{RST_FILE} cannot be downloaded ({error}). {cure(directory)}") from error
        split = load_pseudo_labelled(path)
    if tuple(split.images.shape) != (N_IMAGES, 3, 32, 32) or split.largest_label > 9:
        raise CorruptFileError(f"{path} holds {split}, not {N_IMAGES:,} of 3×32×32. Delete it and fetch it again.")
    return path


def load_pseudo_labelled(path: str | Path) -> Split:
    """Return RST's 500,000 pseudo-labelled tiny images, from its file `ti_500K_pseudo_labeled.pickle`.

    The result is a Split, not a Dataset: the images are extra training images for CIFAR-10. The pickle holds a dict
    with `data`, uint8, N×32×32×3, and `extrapolated_targets`, N labels. No code in the pickle is run.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"There is no file {path}. {cure(path.parent)}")
    try:
        with path.open("rb") as file:
            contents = _ArraysOnly(file).load()
        images, labels = _array(contents["data"]), _array(contents["extrapolated_targets"])
        pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
        return Split(pixels, torch.from_numpy(labels.astype(np.int64)))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # a damaged file may raise any
        raise CorruptFileError(
            f"{path} is not RST's file, or damaged ({error}). Delete it and fetch it again."
        ) from error


def _array(value: Any) -> NDArray[np.generic]:
    return value.values if isinstance(value, _Array) else np.array(value, dtype=np.int64)


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
    """Imports nothing: a name in the pickle is replaced or refused."""

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        match module.replace("numpy._core.", "numpy.core."), name:
            case (
                ("numpy", "ndarray") | ("numpy.core.multiarray", "_reconstruct") | ("numpy.core.numeric", "_frombuffer")
            ):
                return _Array
            case "numpy", "dtype":
                return _DType
            case "_codecs", "encode":  # how pickles of protocol 2 contain bytes
                return lambda text, _encoding: text.encode("latin1")
        raise pickle.UnpicklingError(f"it uses {module}.{name}. A pickle may contain numpy arrays only")
