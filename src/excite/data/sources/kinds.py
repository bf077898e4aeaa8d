"""What a data set that has a name can do, whether others published it, it is part of excite, or a user brought it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from excite.data.dataset import Dataset
from excite.data.sources.description import Description, Facts
from excite.data.sources.npz import load_npz
from excite.data.sources.obtain import obtain
from excite.data.sources.store import read_stored, stored_file
from excite.errors import CorruptFileError, InputError


class Known(Facts, ABC):
    """An entry of `DATASETS`; `str()` of it says in a line what it shows."""

    @abstractmethod
    def load(self, directory: Path, *, download: bool = True) -> Dataset:
        """The data set; one that is not in the data directory is fetched first."""

    @abstractmethod
    def fetch(self, directory: Path) -> Path | None:
        """Make sure that it is on this machine, whole; its file, if it has one."""

    @abstractmethod
    def verify(self, directory: Path) -> str:
        """The fingerprint of what is on this machine; an error if it is missing or not the right one."""

    @abstractmethod
    def file(self, directory: Path) -> Path | None:
        """Where it is, or would be; None if it is in memory."""


@dataclass(frozen=True, kw_only=True)
class Published(Description, Known):
    """A complete data set of others, kept decoded in the data directory."""

    def load(self, directory: Path, *, download: bool = True) -> Dataset:
        path = self.file(directory)
        if not path.exists():
            obtain(self, directory, download=download)
        return read_stored(path, self)

    def fetch(self, directory: Path) -> Path:
        return obtain(self, directory)

    def verify(self, directory: Path) -> str:
        path = self.file(directory)
        if not path.exists():
            raise InputError(f"{self.name} is not in {path.parent}. Run `excite data fetch {self.name}`.")
        return read_stored(path, self).fingerprint()

    def file(self, directory: Path) -> Path:
        return stored_file(directory, self.name)


@dataclass(frozen=True, kw_only=True)
class Embedded(Known):
    """A small data set that is a file of the package."""

    path: Path
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.about}, {self.train_images:,} train and {self.test_images:,} test images, part of excite"

    def load(self, directory: Path, *, download: bool = True) -> Dataset:  # noqa: ARG002
        return load_npz(self.path, name=self.name)

    def fetch(self, directory: Path) -> Path:  # noqa: ARG002
        return self.path

    def verify(self, directory: Path) -> str:
        if (found := self.load(directory).fingerprint()) != self.fingerprint:
            raise CorruptFileError(f"{self.path} has been changed. Install excite again.")
        return found

    def file(self, directory: Path) -> Path:  # noqa: ARG002
        return self.path


@dataclass(frozen=True, eq=False, kw_only=True)
class InMemory(Known):
    """A data set that somebody made or loaded."""

    dataset: Dataset

    @classmethod
    def of(cls, dataset: Dataset) -> "InMemory":
        train, test = len(dataset.train), len(dataset.test)
        return cls(
            name=dataset.name,
            about=f"{train:,} train and {test:,} test images, in memory",
            num_classes=dataset.num_classes,
            class_names=dataset.class_names,
            input_shape=dataset.input_shape,
            train_images=train,
            test_images=test,
            dataset=dataset,
        )

    def __str__(self) -> str:
        return self.about

    def load(self, directory: Path, *, download: bool = True) -> Dataset:  # noqa: ARG002
        return self.dataset

    def fetch(self, directory: Path) -> None:  # noqa: ARG002
        return None

    def verify(self, directory: Path) -> str:  # noqa: ARG002
        return self.dataset.fingerprint()

    def file(self, directory: Path) -> None:  # noqa: ARG002
        return None
