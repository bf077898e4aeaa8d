"""Data sets with most of their labels hidden: a fixed few of every class stay labelled, the rest are images only.

They let anybody try self-training without further data. They are not the sets of unlabelled images that published
figures used: `cifar10-10k+40k` is CIFAR-10 alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from excite.data.dataset import Split
from excite.randomness import derive_seed


@dataclass(frozen=True)
class HiddenLabels:
    """Of the training images of the data set `source`, `labelled` keep their labels and `hidden` lose them."""

    name: str
    source: str
    labelled: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.source} with {self.hidden:,} of its training labels hidden and {self.labelled:,} left"


HIDDEN_LABELS = {
    chosen.name: chosen
    for chosen in (
        HiddenLabels("mnist-sample-1k+4k", "mnist-sample", 1_000, 4_000),
        HiddenLabels("cifar10-10k+40k", "cifar10", 10_000, 40_000),
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
