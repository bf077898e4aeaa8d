"""Every data set by its name: load it, fetch it, verify it, list them all.

To add one: an entry of `DATASETS`, which is one of `kinds`, or `register(dataset)` for one that is in memory.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from excite.data.dataset import Dataset, Split
from excite.data.self_training.hidden_labels import HIDDEN_LABELS
from excite.data.sources.cifar import CIFAR10, CIFAR100
from excite.data.sources.kinds import InMemory, Known
from excite.data.sources.mnist import FASHION_MNIST, MNIST, MNIST_SAMPLE
from excite.data.sources.npz import load_npz
from excite.data.sources.store import ENVIRONMENT_VARIABLE
from excite.errors import InputError, unknown
from excite.registry import named_options

_OURS: tuple[Known, ...] = (MNIST_SAMPLE, MNIST, FASHION_MNIST, CIFAR10, CIFAR100, *HIDDEN_LABELS.values())
DATASETS: dict[str, Known] = {known.name: known for known in _OURS}

_PSEUDO_LABELLED = "tiny-images-500k"


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a data set is on this machine, and how many bytes it takes."""

    name: str
    about: str
    path: Path | None
    size: int | None

    @property
    def present(self) -> bool:
        return self.size is not None

    def __str__(self) -> str:
        state = "not here yet" if self.size is None else f"{self.size / 1e6:.1f} MB"
        return f"{self.name:<18} {state:>12}  {self.about}"


@named_options
def data_directory(data_dir: str | Path | None = None) -> Path:
    """`data_dir` if given, else the environment variable EXCITE_DATA, else the user's cache folder for excite."""
    chosen = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("excite")) / "data"


def names() -> list[str]:
    """The names `load` knows."""
    return list(DATASETS)


@named_options
def find(name: str | Path) -> Known:
    """What is known of a data set by its name, or of a user's own by the path of an .npz file."""
    if isinstance(name, Path) or str(name).endswith(".npz"):
        return InMemory.of(load_npz(Path(name).expanduser()))
    if name in DATASETS:
        return DATASETS[name]
    if name == _PSEUDO_LABELLED:
        raise InputError(
            f"{name} is a file of yours without a test split. Set data.unlabelled of an experiment to its path, or "
            "read it with excite.data.load_pseudo_labelled(path)."
        )
    raise unknown("data set", name, [*names(), "the path of an .npz file"])


@named_options
def register(dataset: Dataset) -> Dataset:
    """Make a data set of your own known by its name, in this process: experiments may then name it."""
    if dataset.name in DATASETS and not isinstance(DATASETS[dataset.name], InMemory):
        raise InputError(f"There is a data set {dataset.name} already; give yours another name.")
    DATASETS[dataset.name] = InMemory.of(dataset)
    return dataset


@named_options
def load(name: str | Path, *, data_dir: str | Path | None = None, download: bool = True) -> Dataset:
    """A data set by name, or a user's own from the path of an .npz file; where labels are hidden, what is left of it.

    A complete data set that is not in the data directory is fetched first; with `download=False` only from official
    files that are already there.

    Args:
        name: one of `names()`, or a path that ends in .npz.
        data_dir: where data sets are kept; by default what EXCITE_DATA names, or the user's cache.
        download: whether it may be fetched.

    Returns:
        Train and test images as uint8 tensors, with their labels.

    >>> len(load("mnist-sample").train), load("mnist-sample").input_shape
    (5000, (1, 28, 28))
    """
    return find(name).load(data_directory(data_dir), download=download)


@named_options
def from_tensors(
    train_images: Tensor,
    train_labels: Tensor,
    test_images: Tensor,
    test_labels: Tensor,
    *,
    name: str = "own",
    num_classes: int | None = None,
    class_names: Sequence[str] = (),
) -> Dataset:
    """A user's own tensors: uint8 images N×C×H×W, int64 labels from 0; `num_classes` is counted if not given.

    >>> import torch
    >>> images, labels = torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 2])
    >>> from_tensors(images, labels, images, labels).num_classes
    3
    """
    train, test = Split(train_images, train_labels), Split(test_images, test_labels)
    if num_classes is None:
        num_classes = len(class_names) or 1 + max(train.largest_label, test.largest_label)
    return Dataset(name, train, test, num_classes, tuple(class_names))


@named_options
def fetch(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Make sure that the data set is in the data directory, whole; its file."""
    return find(name).fetch(data_directory(data_dir))


@named_options
def verify(name: str, data_dir: str | Path | None = None) -> str:
    """The fingerprint of the data set in the data directory; an error if it is missing or changed."""
    return find(name).verify(data_directory(data_dir))


@named_options
def listing(data_dir: str | Path | None = None) -> list[DatasetStatus]:
    """Every named data set and whether it is here."""
    directory = data_directory(data_dir)
    return [
        DatasetStatus(name, str(known), known.file(directory), _size(known, directory))
        for name, known in DATASETS.items()
    ]


def _size(known: Known, directory: Path) -> int | None:
    path = known.file(directory)
    if path is None:
        dataset = known.load(directory)
        return sum(split.images.nbytes + split.labels.nbytes for split in (dataset.train, dataset.test))
    return path.stat().st_size if path.exists() else None
