from collections.abc import Iterator
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from excite.data import AUGMENTATIONS, Split, epoch_batches, steps_per_epoch
from excite.data.batches import Mixture, resident
from excite.errors import InputError

Batch = tuple[torch.Tensor, torch.Tensor]


def numbered(n: int) -> Split:
    """Image i is filled with i and labelled i."""
    images = torch.arange(n).view(n, 1, 1, 1).expand(n, 3, 8, 8).to(torch.uint8)
    return Split(images.contiguous(), torch.arange(n))


def assert_same(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for (x, y), (x_twin, y_twin) in zip(first, second, strict=True):
        assert torch.equal(x, x_twin)
        assert torch.equal(y, y_twin)


def test_every_image_comes_once_with_its_label() -> None:
    batches = list(epoch_batches(numbered(50), batch_size=16, seed=1, epoch=2))
    assert [len(y) for _, y in batches] == [16, 16, 16, 2]
    images, labels = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    assert torch.equal(labels.sort().values, torch.arange(50))
    assert torch.equal(images, (labels.float() / 255).view(-1, 1, 1, 1).expand_as(images))
    assert images.dtype == torch.float32
    assert not torch.equal(labels, torch.arange(50))


@settings(max_examples=30)
@given(
    n=st.integers(1, 40), batch_size=st.integers(1, 45), data=st.data(), augmentation=st.sampled_from([*AUGMENTATIONS])
)
def test_starting_later_gives_the_rest_of_the_epoch(
    n: int, batch_size: int, data: st.DataObject, augmentation: str
) -> None:
    split = numbered(n)
    steps = steps_per_epoch(len(split), batch_size)
    start = data.draw(st.integers(0, steps))

    def batches(start: int) -> list[Batch]:
        augment = AUGMENTATIONS[augmentation]
        return list(epoch_batches(split, batch_size=batch_size, seed=5, epoch=3, augment=augment, start=start))

    assert len(batches(0)) == steps
    assert_same(batches(0)[start:], batches(start))


@settings(max_examples=30)
@given(
    n=st.integers(1, 40), batch_size=st.integers(1, 45), world=st.integers(2, 5), name=st.sampled_from([*AUGMENTATIONS])
)
def test_the_shares_of_all_processes_are_the_batch_of_one(n: int, batch_size: int, world: int, name: str) -> None:
    def batches(rank: int = 0, world: int = 1) -> list[Batch]:
        augment = AUGMENTATIONS[name]
        return list(
            epoch_batches(numbered(n), batch_size=batch_size, seed=5, epoch=3, augment=augment, rank=rank, world=world)
        )

    shares = zip(*(batches(rank, world) for rank in range(world)), strict=True)
    for (x, y), parts in zip(batches(), shares, strict=True):
        if len(y) < world:
            assert_same([(x, y)] * world, list(parts))
            continue
        assert max(len(labels) for _, labels in parts) - min(len(labels) for _, labels in parts) <= 1
        order = torch.cat([labels for _, labels in parts]).argsort()
        images = torch.cat([images for images, _ in parts])
        assert torch.equal(torch.cat([labels for _, labels in parts])[order], y.sort().values)
        assert torch.equal(images[order], x[y.argsort()])


def test_an_epoch_does_not_depend_on_what_ran_before() -> None:
    split, augment = numbered(40), AUGMENTATIONS["crop-flip"]

    def epoch(number: int) -> list[Batch]:
        return list(epoch_batches(split, batch_size=8, seed=0, epoch=number, augment=augment))

    alone = epoch(7)
    torch.manual_seed(99)
    for earlier in range(7):
        epoch(earlier)
    assert_same(epoch(7), alone)


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    state = torch.get_rng_state()
    list(epoch_batches(numbered(10), batch_size=4, seed=0, epoch=0, augment=AUGMENTATIONS["crop-flip"]))
    assert torch.equal(torch.get_rng_state(), state)


def test_seed_and_epoch_change_the_order() -> None:
    def labels(seed: int, epoch: int) -> torch.Tensor:
        return next(epoch_batches(numbered(40), batch_size=40, seed=seed, epoch=epoch))[1]

    orders = {tuple(labels(*address).tolist()) for address in [(0, 0), (0, 1), (1, 0), (1, 1)]}
    assert len(orders) == 4


def test_seed_epoch_and_step_change_the_augmentation() -> None:
    """White images look alike in any order, so only their augmentation can tell two batches apart."""
    white = Split(torch.full((40, 1, 9, 9), 255, dtype=torch.uint8), torch.zeros(40, dtype=torch.int64))

    def batches(seed: int, epoch: int) -> Iterator[Batch]:
        return epoch_batches(white, batch_size=20, seed=seed, epoch=epoch, augment=AUGMENTATIONS["crop-flip"])

    images = [x for seed in (0, 1) for epoch in (0, 1) for x, _ in batches(seed, epoch)]
    assert len(images) == 8
    assert not any(torch.equal(one, other) for one, other in combinations(images, 2))


def test_memory_format_and_device_are_as_asked() -> None:
    plain = epoch_batches(numbered(8), batch_size=8, seed=0, epoch=0)
    asked = epoch_batches(numbered(8), batch_size=8, seed=0, epoch=0, device="cpu", memory_format=torch.channels_last)
    images, labels = next(asked)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert_same([(images, labels)], [next(plain)])


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InputError, match="batch_size"):
        steps_per_epoch(9, 0)


def test_images_that_fit_are_copied_to_a_gpu_once() -> None:
    """Torch's meta device stands for a GPU: tensors on it have a shape and a device and no numbers."""
    gpu = torch.device("meta")
    split = Split(torch.zeros(100, 3, 8, 8, dtype=torch.uint8), torch.arange(100) % 10)
    needed = 8 * split.images.nbytes
    assert resident(split, gpu, free=needed - 1) is split
    assert resident(split, torch.device("cpu")) is split  # where it is already
    moved = resident(split, gpu, free=needed)
    assert isinstance(moved, Split)
    assert (moved.images.device, moved.labels.device, split.images.device.type) == (gpu, gpu, "cpu")
    assert [x.device for x, _ in epoch_batches(moved, batch_size=60, seed=0, epoch=0)] == [gpu, gpu]
    mixture = Mixture(split, split)
    assert resident(mixture, gpu, free=needed) is mixture  # twice as large
    both = resident(mixture, gpu, free=2 * needed)
    assert isinstance(both, Mixture)
    assert (both.labelled.images.device, both.pseudo.images.device) == (gpu, gpu)


def test_a_device_that_is_missing_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="warp"):
        epoch_batches(numbered(4), batch_size=2, seed=0, epoch=0, device="warp")
