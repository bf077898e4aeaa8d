from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from excite.data import AUGMENTATIONS, Mixture, Split, epoch_batches, steps_per_epoch
from excite.errors import InputError

Batch = tuple[torch.Tensor, torch.Tensor]
PSEUDO = 100  # the first label of a pseudo-labelled image


def numbered(n: int, first: int = 0) -> Split:
    """Image i is filled with first + i and labelled so."""
    numbers = first + torch.arange(n)
    images = numbers.view(n, 1, 1, 1).expand(n, 3, 8, 8).to(torch.uint8)
    return Split(images.contiguous(), numbers)


def mixture(labelled: int = 7, pseudo: int = 11, epoch_samples: int = 20) -> Mixture:
    return Mixture(numbered(labelled), numbered(pseudo, PSEUDO), epoch_samples)


def assert_same(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for (x, y), (x_twin, y_twin) in zip(first, second, strict=True):
        assert torch.equal(x, x_twin)
        assert torch.equal(y, y_twin)


@pytest.mark.parametrize(("batch_size", "labelled"), [(2, 1), (6, 3), (7, 4)])
def test_the_first_half_is_labelled_and_images_come_with_their_labels(batch_size: int, labelled: int) -> None:
    for x, y in epoch_batches(mixture(), batch_size=batch_size, seed=1, epoch=0):
        assert len(y) == batch_size
        assert (y < PSEUDO).tolist() == [True] * labelled + [False] * (batch_size - labelled)
        assert torch.equal(x, (y.float() / 255).view(-1, 1, 1, 1).expand_as(x))


def test_an_epoch_counts_its_samples_whatever_the_parts() -> None:
    assert steps_per_epoch(len(mixture(epoch_samples=50_000)), 256) == 196
    assert len(list(epoch_batches(mixture(epoch_samples=20), batch_size=8, seed=0, epoch=4))) == 3


@settings(max_examples=40)
@given(
    labelled=st.integers(1, 12),
    pseudo=st.integers(1, 12),
    batch_size=st.integers(2, 30),
    epoch_samples=st.integers(1, 60),
    seed=st.integers(0, 3),
)
def test_each_part_is_seen_whole_before_any_of_it_comes_again(
    labelled: int, pseudo: int, batch_size: int, epoch_samples: int, seed: int
) -> None:
    mixed = mixture(labelled, pseudo, epoch_samples)
    batches = [y for epoch in range(4) for _, y in epoch_batches(mixed, batch_size=batch_size, seed=seed, epoch=epoch)]
    seen = torch.cat(batches)
    for size, part in ((labelled, seen[seen < PSEUDO]), (pseudo, seen[seen >= PSEUDO])):
        for rounds in range(len(part) // size):
            assert len(set(part[rounds * size : (rounds + 1) * size].tolist())) == size
        assert max(Counter(part.tolist()).values()) == -(-len(part) // size)


@settings(max_examples=30)
@given(
    batch_size=st.integers(2, 12),
    epoch=st.integers(0, 5),
    data=st.data(),
    augmentation=st.sampled_from([*AUGMENTATIONS]),
)
def test_starting_later_gives_the_rest_of_the_epoch(
    batch_size: int, epoch: int, data: st.DataObject, augmentation: str
) -> None:
    mixed = mixture()

    def batches(start: int) -> list[Batch]:
        augment = AUGMENTATIONS[augmentation]
        return list(epoch_batches(mixed, batch_size=batch_size, seed=5, epoch=epoch, augment=augment, start=start))

    start = data.draw(st.integers(0, steps_per_epoch(len(mixed), batch_size)))
    assert_same(batches(0)[start:], batches(start))


@pytest.mark.parametrize("augmentation", ["none", "crop-flip"])
@pytest.mark.parametrize(("batch_size", "world"), [(8, 2), (9, 2), (7, 3), (12, 3)])
def test_the_shares_of_all_processes_are_the_batch_and_keep_its_order(
    augmentation: str, batch_size: int, world: int
) -> None:
    def batches(rank: int, world: int) -> list[Batch]:
        augment = AUGMENTATIONS[augmentation]
        mixed = epoch_batches(
            mixture(), batch_size=batch_size, seed=3, epoch=1, augment=augment, rank=rank, world=world
        )
        return list(mixed)

    shares = zip(*(batches(rank, world) for rank in range(world)), strict=True)
    for (x, y), parts in zip(batches(0, 1), shares, strict=True):
        rows = sorted((int(label), image.sum().item()) for image, label in zip(x, y, strict=True))
        shared = [
            (int(label), image.sum().item()) for part in parts for image, label in zip(part[0], part[1], strict=True)
        ]
        assert sorted(shared) == rows
        for _, labels in parts:
            labelled = -(-len(labels) // 2)  # the half that rst takes for labelled
            assert (labels < PSEUDO).tolist() == [True] * labelled + [False] * (len(labels) - labelled)


def test_seeds_and_epochs_differ() -> None:
    def labels(seed: int, epoch: int) -> list[int]:
        batches = epoch_batches(mixture(), batch_size=4, seed=seed, epoch=epoch)
        return torch.cat([y for _, y in batches]).tolist()

    assert labels(0, 0) != labels(1, 0)
    assert labels(0, 0) != labels(0, 1)


def test_a_probe_is_whole_batches_in_their_order() -> None:
    images, labels = mixture().probe(examples=13, batch_size=5)
    assert labels.tolist() == [0, 1, 2, 100, 101, 3, 4, 5, 102, 103]
    assert torch.equal(images[:, 0, 0, 0], labels.float() / 255)
    _, labels = mixture().probe(examples=3, batch_size=8)
    assert labels.tolist() == [0, 1, 100]
    _, labels = mixture(labelled=2).probe(examples=8, batch_size=8)
    assert labels.tolist() == [0, 1, 0, 1, 100, 101, 102, 103]
    plain = numbered(9)
    assert torch.equal(plain.probe(4, 2)[0], plain.floats()[:4])


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match="shape"):
        Mixture(numbered(2), Split(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)))
    with pytest.raises(InputError, match="epoch_samples"):
        mixture(epoch_samples=0)
    with pytest.raises(InputError, match="batch_size"):
        epoch_batches(mixture(), batch_size=1, seed=0, epoch=0)
