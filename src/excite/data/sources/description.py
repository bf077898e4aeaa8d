"""What is known of a complete data set: its shape, its hashes, its files, and where they can be had."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from excite.data.dataset import Dataset, Split
from excite.errors import CorruptFileError

Splits = tuple[Split, Split]
ReadFile = Callable[[str], bytes]
Decode = Callable[[ReadFile], Splits]


class Source(Protocol):
    """A place that may have the data; `str()` of it names the place for people."""

    def splits(self, scratch: Path) -> Splits:
        """Train and test, decoded; files needed on the way go to the empty folder `scratch`."""


@dataclass(frozen=True)
class OfficialFile:
    """A file as its authors published it."""

    name: str
    address: str
    md5: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of any named data set before it is loaded."""

    name: str
    about: str
    num_classes: int
    input_shape: tuple[int, int, int]
    train_images: int
    test_images: int
    class_names: tuple[str, ...] = ()  # none: the numbers


@dataclass(frozen=True, kw_only=True)
class Description(Facts):
    """One data set; the hash of its decoded arrays is `Dataset.fingerprint`."""

    files: tuple[OfficialFile, ...]
    decode: Decode  # of the official files
    fingerprint: str | None = None  # None: the MD5 of the official files is the only check
    fallback: Source | None = None  # for networks that reach package registries only

    def __str__(self) -> str:
        size = "×".join(map(str, self.input_shape))
        return f"{self.about}, {size}, {self.train_images:,} train and {self.test_images:,} test images"

    def check(self, splits: Splits) -> Dataset:
        """The splits as a Dataset, if they are the ones described."""
        train, test = splits
        dataset = Dataset(self.name, train, test, self.num_classes, self.class_names)
        found = (len(train), len(test), dataset.input_shape)
        if found != (self.train_images, self.test_images, self.input_shape):
            raise CorruptFileError(
                f"found {dataset}, expected {self.train_images:,} and {self.test_images:,} images "
                f"of {'×'.join(map(str, self.input_shape))}"
            )
        if self.fingerprint is not None and (fingerprint := dataset.fingerprint()) != self.fingerprint:
            raise CorruptFileError(
                f"the decoded images and labels have SHA-256 {fingerprint}, expected {self.fingerprint}"
            )
        return dataset
