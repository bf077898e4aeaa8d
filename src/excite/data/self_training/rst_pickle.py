"""RST's 500,000 pseudo-labelled tiny images, read from its pickle without letting the pickle run anything."""

import pickle
import pickletools
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from excite.data.dataset import Split
from excite.errors import CorruptFileError, InputError
from excite.registry import named_options

_NO_PICKLE = (EOFError, ValueError, TypeError, AttributeError, LookupError, MemoryError, OverflowError, RecursionError)
_WHOLE_NUMBERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")


@named_options
def load_pseudo_labelled(path: str | Path) -> Split:
    """The images and pseudo-labels of `ti_500K_pseudo_labeled.pickle` (data set `tiny-images-500k`).

    They are extra training images for CIFAR-10 without a test split of their own: a Split, not a Dataset.
    The pickle holds a dict with `data`, uint8, N×32×32×3, and `extrapolated_targets`, N labels.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"There is no file {path}. RST publishes it as ti_500K_pseudo_labeled.pickle.")
    contents = _unpickle(path)
    if not isinstance(contents, dict) or not {"data", "extrapolated_targets"} <= contents.keys():
        raise InputError(f"{path} is not RST's file: that one has the keys 'data' and 'extrapolated_targets'.")
    images, labels = _array(contents["data"]), _array(contents["extrapolated_targets"])
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise InputError(f"'data' in {path} must be uint8, N×H×W×3, not {images.dtype} of shape {images.shape}.")
    return Split(
        torch.from_numpy(images.transpose(0, 3, 1, 2).copy()),
        torch.from_numpy(labels.astype(np.int64)),
    )


def _unpickle(path: Path) -> object:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            _check_claims(file, size)
            file.seek(0)
            contents: object = _ArraysOnly(file, allowance=size).load()
    except pickle.UnpicklingError as error:
        raise CorruptFileError(f"{path} was refused: {error}. Only a pickle of plain numpy arrays is read.") from error
    except _NO_PICKLE as error:
        raise CorruptFileError(f"{path} is no whole pickle of numpy arrays ({error}). Download it again.") from error
    return contents


def _check_claims(file: BinaryIO, size: int) -> None:
    """Refuse a pickle whose parts claim more bytes, or more places for what is to be remembered, than it has."""
    for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > number:
            raise pickle.UnpicklingError(f"it wants to remember {argument:,} things, and has made {number:,}")
        if opcode.name == "FRAME" and int(argument or 0) > size:
            raise pickle.UnpicklingError(f"it claims {argument:,} bytes and has {size:,}")


def _array(value: object) -> NDArray[np.generic]:
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return np.array(value, dtype=np.int64)
    raise InputError(f"RST's file holds arrays of whole numbers; this one holds a {type(value).__name__}.")


class _DType:
    """Stands in for numpy.dtype; knows whole numbers only."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in _WHOLE_NUMBERS:
            raise pickle.UnpicklingError(f"it holds an array of type {code!r}, not of whole numbers")
        self.code = code
        self.byte_order = "<"

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.byte_order = ">" if state[1] == ">" else "<"


class _Array:
    """Stands in for numpy.ndarray and for the function that makes an empty one to be filled by `__setstate__`."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[np.generic] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _DType, bool, bytes]) -> None:
        _, shape, dtype, fortran_order, contents = state
        self._fill(contents, dtype, shape, "F" if fortran_order else "C")

    def _fill(self, contents: bytes, dtype: _DType, shape: tuple[int, ...], order: str) -> None:
        flat = np.frombuffer(contents, dtype.byte_order + dtype.code)
        self.values = flat.reshape(shape, order="F" if order == "F" else "C")


class _ArrayFromBuffer(_Array):
    """Stands in for the function by which pickles of protocol 5 make an array."""

    def __init__(self, contents: bytes, dtype: _DType, shape: tuple[int, ...], order: str) -> None:
        super().__init__()
        self._fill(contents, dtype, shape, order)


class _Latin1(bytes):
    """Stands in for `_codecs.encode`, by which pickles of protocol 2 make bytes."""

    allowance: ClassVar[list[int]]

    def __new__(cls, text: str, encoding: str) -> "_Latin1":  # noqa: ARG004
        cls.allowance[0] -= len(text)
        if cls.allowance[0] < 0:
            raise pickle.UnpicklingError("it would grow to more bytes than it has")
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it gives bytes a state")


_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _ArrayFromBuffer for core in ("core", "_core")},
}


class _ArraysOnly(pickle.Unpickler):
    """No name in the pickle is imported: it has a stand-in or is refused. Text becomes at most `allowance` bytes."""

    def __init__(self, file: BinaryIO, allowance: int) -> None:
        super().__init__(file)
        self._latin1 = type("_Latin1Here", (_Latin1,), {"allowance": [allowance]})

    def find_class(self, module: str, name: str) -> type:
        if (module, name) == ("_codecs", "encode"):
            return self._latin1
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _STAND_INS[module, name]
