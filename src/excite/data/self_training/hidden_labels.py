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


@dataclass(frozen=True, kw_only=True)
class HiddenLabels(Known):
    """Of the training images of the data set `whole`, `train_images` keep their labels and the others lose them."""

    whole: Known

    def __str__(self) -> str:
        return self.about

    def load(self, directory: Path, *, download: bool = True) -> Dataset:
        whole = self.whole.load(directory, download=download)
        labelled, _ = hide_labels(whole.train, self.train_images)
        return replace(whole, name=self.name, train=labelled)

    def hidden_part(self, directory: Path) -> Split:
        """The training images that it lacks, with the labels that it hides."""
        _, hidden = hide_labels(self.whole.load(directory).train, self.train_images)
        return hidden

    def fetch(self, directory: Path) -> Path | None:
        return self.whole.fetch(directory)

    def verify(self, directory: Path) -> str:
        return self.whole.verify(directory)

    def file(self, directory: Path) -> Path | None:
        return self.whole.file(directory)


def _hiding(whole: Known, name: str, labelled: int) -> HiddenLabels:
    hidden = whole.train_images - labelled
    return HiddenLabels(
        name=name,
        about=f"{whole.name} with {hidden:,} of its training labels hidden and {labelled:,} left",
        num_classes=whole.num_classes,
        input_shape=whole.input_shape,
        train_images=labelled,
        test_images=whole.test_images,
        class_names=whole.class_names,
        whole=whole,
    )


HIDDEN_LABELS = {
    hiding.name: hiding
    for hiding in (
        _hiding(MNIST_SAMPLE, "mnist-sample-1k+4k", 1_000),
        _hiding(CIFAR10, "cifar10-10k+40k", 10_000),
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
