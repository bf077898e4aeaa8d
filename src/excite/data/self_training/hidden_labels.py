"""Data sets with most of their labels hidden: a fixed few of every class stay labelled, the rest are images only.

They let anybody try self-training without further data. They are not the sets of unlabelled images that published
figures used: `cifar10-10k+40k` is CIFAR-10 alone.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from excite.data.dataset import Dataset, Split
from excite.data.sources.cifar import CIFAR10
from excite.data.sources.kinds import Known
from excite.data.sources.mnist import MNIST_SAMPLE
from excite.randomness import derive_seed


@dataclass(frozen=True)
class HiddenLabels:
    """Of the training images of the data set `whole`, `labelled` keep their labels and `hidden` lose them."""

    name: str
    whole: Known
    labelled: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.source} with {self.hidden:,} of its training labels hidden and {self.labelled:,} left"

    @property
    def source(self) -> str:
        return self.whole.name

    @property
    def train_images(self) -> int:
        return self.labelled

    @property
    def test_images(self) -> int:
        return self.whole.test_images

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return self.whole.input_shape

    @property
    def num_classes(self) -> int:
        return self.whole.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.whole.class_names

    def load(self, directory: Path, *, download: bool = True) -> Dataset:
        whole = self.whole.load(directory, download=download)
        labelled, _ = hide_labels(whole.train, self.labelled)
        return replace(whole, name=self.name, train=labelled)

    def hidden_part(self, directory: Path) -> Split:
        """The training images that it lacks, with the labels that it hides."""
        _, hidden = hide_labels(self.whole.load(directory).train, self.labelled)
        return hidden

    def fetch(self, directory: Path) -> Path | None:
        return self.whole.fetch(directory)

    def verify(self, directory: Path) -> str:
        return self.whole.verify(directory)

    def file(self, directory: Path) -> Path | None:
        return self.whole.file(directory)


HIDDEN_LABELS = {
    chosen.name: chosen
    for chosen in (
        HiddenLabels("mnist-sample-1k+4k", MNIST_SAMPLE, 1_000, 4_000),
        HiddenLabels("cifar10-10k+40k", CIFAR10, 10_000, 40_000),
    )
}


def hide_labels(train: Split, labelled: int) -> tuple[Split, Split]:
    """The images that keep their labels, equally many of each class, and all the others; both in their old order.

    Of each class those keep them whose `derive_seed(0, index)` is smallest: the same on every machine.
    """
    rank = torch.tensor([derive_seed(0, index) for index in range(len(train))])
    classes = 1 + int(train.labels.max())
    keeps = torch.zeros(len(train), dtype=torch.bool)
    for label in range(classes):
        members = torch.where(train.labels == label)[0]
        keeps[members[rank[members].argsort()[: labelled // classes]]] = True
    return _where(train, keeps), _where(train, ~keeps)


def _where(split: Split, mask: Tensor) -> Split:
    return Split(split.images[mask], split.labels[mask])
