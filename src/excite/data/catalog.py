"""Every data set by name: load, fetch, verify and list them.

To add one, add an entry to `DATASETS`; to add one that is in memory, call `register(dataset)`.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from excite.data.dataset import Dataset
from excite.data.image_files import load_npz
from excite.data.published import CIFAR10, CIFAR100, FASHION_MNIST, HIDDEN_LABELS, MNIST, MNIST_SAMPLE
from excite.data.sources import ENVIRONMENT_VARIABLE, InMemory, Source
from excite.errors import InputError, unknown

_INCLUDED: tuple[Source, ...] = (MNIST_SAMPLE, MNIST, FASHION_MNIST, CIFAR10, CIFAR100, *HIDDEN_LABELS.values())
DATASETS: dict[str, Source] = {source.name: source for source in _INCLUDED}

_PSEUDO_LABELLED = "tiny-images-500k"


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a data set is on this machine, and its size in bytes."""

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


def data_directory(data_dir: str | Path | None = None) -> Path:
    """Return `data_dir` if given, else the environment variable EXCITE_DATA, else the user's cache folder."""
    chosen = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("excite")) / "data"


def names() -> list[str]:
    """Return the names that `load` accepts."""
    return list(DATASETS)


def find(name: str | Path) -> Source:
    """Return what is known about a data set, given its name or the path of an .npz file."""
    if isinstance(name, Path) or str(name).endswith(".npz"):
        return InMemory.of(load_npz(Path(name).expanduser()))
    if name in DATASETS:
        return DATASETS[name]
    if name == _PSEUDO_LABELLED:
        raise InputError(
            f"{name} has no test split, so it is not a data set. Set data.unlabelled of an experiment to the path of "
            "your file, or read it with excite.data.load_pseudo_labelled(path)."
        )
    raise unknown("data set", name, [*names(), "the path of an .npz file"])


def register(dataset: Dataset) -> Dataset:
    """Make a data set available by its name in this process, for `load` and for experiments."""
    if dataset.name in DATASETS and not isinstance(DATASETS[dataset.name], InMemory):
        raise InputError(f"There is already a data set {dataset.name}; give yours another name.")
    DATASETS[dataset.name] = InMemory.of(dataset)
    return dataset


def load(name: str | Path, *, data_dir: str | Path | None = None, download: bool = True) -> Dataset:
    """Load a data set by name, or from the path of an .npz file.

    A data set that is not in the data directory is fetched first. With `download=False`, it is only decoded from
    original files that are already in the data directory.

    Args:
        name: one of `names()`, or a path that ends in .npz.
        data_dir: where data sets are kept; by default the environment variable EXCITE_DATA, or the user's cache.
        download: whether the data set may be downloaded.

    Returns:
        Train and test images as uint8 tensors, with their labels. Images with hidden labels are left out.

    >>> len(load("mnist-sample").train), load("mnist-sample").input_shape
    (5000, (1, 28, 28))
    """
    return find(name).load(data_directory(data_dir), download=download)


def fetch(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Make sure that the data set is in the data directory and intact; return its file."""
    return find(name).fetch(data_directory(data_dir))


def verify(name: str, data_dir: str | Path | None = None) -> str:
    """Return the fingerprint of the data set in the data directory; raise an error if it is missing or damaged."""
    return find(name).verify(data_directory(data_dir))


def listing(data_dir: str | Path | None = None) -> list[DatasetStatus]:
    """Return every named data set and whether it is on this machine."""
    directory = data_directory(data_dir)
    return [
        DatasetStatus(name, str(source), source.file(directory), _size(source, directory))
        for name, source in DATASETS.items()
    ]


def _size(source: Source, directory: Path) -> int | None:
    path = source.file(directory)
    if path is None:
        dataset = source.load(directory)
        return sum(split.images.nbytes + split.labels.nbytes for split in (dataset.train, dataset.test))
    return path.stat().st_size if path.exists() else None
