"""What a data set that has a name can do, whether others published it, it is part of excite, or a user brought it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from excite.data.dataset import Dataset
from excite.data.sources.description import Description
from excite.data.sources.npz import load_npz
from excite.data.sources.obtain import obtain
from excite.data.sources.store import read_stored, stored_file
from excite.errors import CorruptFileError, InputError


class Known(Protocol):
    """An entry of `DATASETS`; `str()` of it says in a line what it shows. The sizes are known before it is loaded."""

    @property
    def name(self) -> str: ...
    @property
    def train_images(self) -> int: ...
    @property
    def test_images(self) -> int: ...
    @property
    def input_shape(self) -> tuple[int, int, int]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...

    def load(self, directory: Path, *, download: bool = True) -> Dataset:
        """The data set; one that is not in the data directory is fetched first."""
        ...

    def fetch(self, directory: Path) -> Path | None:
        """Make sure that it is on this machine, whole; its file, if it has one."""
        ...

    def verify(self, directory: Path) -> str:
        """The fingerprint of what is on this machine; an error if it is missing or not the right one."""
        ...

    def file(self, directory: Path) -> Path | None:
        """Where it is, or would be; None if it is in memory."""
        ...


@dataclass(frozen=True)
class Published(Description):
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


@dataclass(frozen=True)
class Embedded:
    """A small data set that is a file of the package."""

    name: str
    about: str
    path: Path
    train_images: int
    test_images: int
    input_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.about}, {self.train_images:,} train and {self.test_images:,} test images, part of excite"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

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


@dataclass(frozen=True, eq=False)
class InMemory:
    """A data set that somebody made or loaded."""

    dataset: Dataset

    def __str__(self) -> str:
        return f"{len(self.dataset.train):,} train and {len(self.dataset.test):,} test images, in memory"

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def train_images(self) -> int:
        return len(self.dataset.train)

    @property
    def test_images(self) -> int:
        return len(self.dataset.test)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return self.dataset.input_shape

    @property
    def num_classes(self) -> int:
        return self.dataset.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.dataset.class_names

    def load(self, directory: Path, *, download: bool = True) -> Dataset:  # noqa: ARG002
        return self.dataset

    def fetch(self, directory: Path) -> None:  # noqa: ARG002
        return None

    def verify(self, directory: Path) -> str:  # noqa: ARG002
        return self.dataset.fingerprint()

    def file(self, directory: Path) -> None:  # noqa: ARG002
        return None
