"""Read images from .npz files of users; no code in a file is ever run."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from excite.data.dataset import Dataset, from_tensors
from excite.errors import CorruptFileError, InputError

# The keys of an .npz file: of a data set, and of images alone (the first one that is there).
_DATASET_KEYS = ("x_train", "y_train", "x_test", "y_test")
_IMAGE_KEYS = ("x", "x_train", "images", "image")
_LABEL_KEYS = ("y", "y_train", "labels", "label")

SUSPICIOUS_BYTES, SUSPICIOUS_RATIO = 2**28, 200  # larger and better compressed than real images

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
        names = archive["class_names"].astype(str).tolist() if "class_names" in archive else ()
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
    except Exception as error:  # a damaged file may raise any
        raise CorruptFileError(f"{path} is damaged or not an .npz file of plain arrays ({error}).") from error


def _channels_first(images: Any) -> Any:
    """Return N×H×W or N×H×W×C images as N×C×H×W."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return images  # a Split refuses other shapes
