"""Further training images for self-training: without labels, or already pseudo-labelled."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from excite.data.dataset import checked_images, checked_labels
from excite.data.self_training.hidden_labels import HIDDEN_LABELS
from excite.data.self_training.rst_pickle import load_pseudo_labelled
from excite.data.sources.known import data_directory
from excite.data.sources.npz import label_name, load_images, open_npz
from excite.errors import InputError, unknown
from excite.registry import named_options, with_named_options

_PICKLES = (".pickle", ".pkl")


@with_named_options
@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Images, uint8, N×C×H×W. `labels`, where they are known, judge pseudo-labels; nothing is trained on them."""

    name: str
    images: Tensor
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", checked_images(self.images))
        if self.labels is not None:
            object.__setattr__(self, "labels", checked_labels(self.labels, self.images))

    def __len__(self) -> int:
        return self.images.shape[0]

    def fingerprint(self) -> str:
        """SHA-256 of the sizes N, C, H, W (little-endian int64) and the bytes of the images in C order."""
        digest = hashlib.sha256(np.array(self.images.shape, dtype="<i8").tobytes())
        digest.update(self.images.cpu().contiguous().numpy().data)
        return digest.hexdigest()


@named_options
def load_unlabelled(source: str | Path) -> Unlabelled:
    """Images by the name of a data set with hidden labels, from an .npz file, or from RST's pickle."""
    name = str(source)
    if name in HIDDEN_LABELS:
        hidden = HIDDEN_LABELS[name].hidden_part(data_directory())
        return Unlabelled(name, hidden.images, hidden.labels)
    path = Path(source).expanduser()
    if path.suffix == ".npz":
        return Unlabelled(path.name, *load_images(path))
    if path.suffix in _PICKLES:
        split = load_pseudo_labelled(path)
        return Unlabelled(path.name, split.images, split.labels)
    raise _unknown(name)


def comes_labelled(source: str | Path) -> bool:
    """Whether the images bring labels to train on, so that no teacher is needed. Reads no images."""
    name, path = str(source), Path(source).expanduser()
    if name in HIDDEN_LABELS:
        return False
    if path.suffix == ".npz":
        with open_npz(path) as archive:
            return label_name(archive) is not None
    if path.suffix in _PICKLES:
        if not path.is_file():
            raise InputError(f"There is no file {path}.")
        return True
    raise _unknown(name)


def _unknown(name: str) -> InputError:
    return unknown("unlabelled data", name, [*HIDDEN_LABELS, "the path of an .npz file or of RST's .pickle"])
