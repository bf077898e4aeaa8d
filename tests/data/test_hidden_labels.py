from collections.abc import Callable

import pytest
import torch

from excite import data
from excite.data.catalog import HIDDEN_LABELS
from excite.data.sources import hide_labels
from excite.randomness import derive_seed

SAMPLE_WITH_HIDDEN_LABELS = "28c7803d23411fe6b58214f152bd973b8a7042451ec86caacad7656125b8dbfc"
HIDDEN_CIFAR10 = "a55c337cb4a7aaf96a981fc17d4f1cecb5a0ee0e530019864ae9d094b996ad1e"


def test_of_each_class_the_smallest_hashes_stay_labelled() -> None:
    labels = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1, 1, 0])
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1)
    labelled, hidden = hide_labels(data.Split(images, labels), 6)
    kept = sorted(
        index
        for label in (0, 1)
        for index in sorted(torch.where(labels == label)[0].tolist(), key=lambda index: derive_seed(0, index))[:3]
    )
    assert labelled.images.flatten().tolist() == kept
    assert hidden.images.flatten().tolist() == [index for index in range(10) if index not in kept]
    assert torch.equal(labelled.labels, labels[kept])


def test_the_sample_with_hidden_labels_is_what_its_name_says() -> None:
    whole, left = data.load("mnist-sample"), data.load("mnist-sample-1k+4k")
    hidden = data.load_unlabelled("mnist-sample-1k+4k")
    assert left.name == hidden.name == "mnist-sample-1k+4k"
    assert left.train.labels.bincount().tolist() == [100] * 10
    assert hidden.labels is not None
    assert hidden.labels.bincount().tolist() == [400] * 10
    assert torch.equal(left.test.images, whole.test.images)
    both = torch.cat([left.train.images, hidden.images]).flatten(1).sum(1).sort().values
    assert torch.equal(both, whole.train.images.flatten(1).sum(1).sort().values)


def test_the_choice_never_changes() -> None:
    assert data.load("mnist-sample-1k+4k").fingerprint() == SAMPLE_WITH_HIDDEN_LABELS


@pytest.mark.parametrize("name", HIDDEN_LABELS)
def test_what_is_hidden_is_named(name: str) -> None:
    about = {row.name: row.about for row in data.listing()}[name]
    hiding = HIDDEN_LABELS[name]
    assert f"{hiding.whole.train_images - hiding.train_images:,} of its training labels hidden" in about


def test_the_file_is_the_one_of_its_source() -> None:
    assert data.fetch("mnist-sample-1k+4k") == data.fetch("mnist-sample")
    assert data.verify("mnist-sample-1k+4k") == SAMPLE_WITH_HIDDEN_LABELS


@pytest.mark.full_data
def test_cifar10_with_hidden_labels(full_dataset: Callable[[str], data.Dataset]) -> None:
    whole = full_dataset("cifar10")
    left, hidden = data.load("cifar10-10k+40k"), data.load_unlabelled("cifar10-10k+40k")
    assert (len(left.train), len(hidden), len(left.test)) == (10_000, 40_000, 10_000)
    assert left.train.labels.bincount().tolist() == [1_000] * 10
    assert hidden.labels is not None
    assert hidden.labels.bincount().tolist() == [4_000] * 10
    assert len(whole.train) == len(left.train) + len(hidden)
    assert hidden.fingerprint() == HIDDEN_CIFAR10
