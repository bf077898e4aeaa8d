"""An epoch's batches are a function of (seed, epoch), so a run can start again at any step of any epoch."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from excite.data.augment import Augmentation, none
from excite.data.dataset import Split, unit_floats
from excite.errors import InputError
from excite.randomness import derive_seed


class Batched(Protocol):
    """Training data that are no Split and make their own batches, with the promises of `epoch_batches`."""

    def steps(self, batch_size: int) -> int:
        """How many batches an epoch has."""
        ...

    def batches(
        self,
        *,
        batch_size: int,
        seed: int,
        epoch: int,
        augment: Augmentation = none,
        start: int = 0,
        device: torch.device | str | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        rank: int = 0,
        world: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]: ...


def steps_per_epoch(data: Split | Batched, batch_size: int) -> int:
    """How many batches one pass over the data takes; the last may be smaller."""
    if batch_size < 1:
        raise InputError(f"A batch needs at least one image; batch_size is {batch_size}.")
    return -(-len(data) // batch_size) if isinstance(data, Split) else data.steps(batch_size)


def epoch_batches(
    data: Split | Batched,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    augment: Augmentation = none,
    start: int = 0,
    device: torch.device | str | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    rank: int = 0,
    world: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every image of the data once, in batches of (float32 images in [0, 1], labels), from step `start` on.

    The order follows from (seed, epoch), the augmentation of a batch from (seed, epoch, step).
    Images come on `device` (default: where the data are) in `memory_format`.

    Of `world` processes, number `rank` gets its share of every batch, see `share`. A batch is augmented before it is
    shared out, so the shares together are the very images that a single process sees.
    """
    if not isinstance(data, Split):
        return data.batches(
            batch_size=batch_size,
            seed=seed,
            epoch=epoch,
            augment=augment,
            start=start,
            device=device,
            memory_format=memory_format,
            rank=rank,
            world=world,
        )
    steps = steps_per_epoch(data, batch_size)
    if not 0 <= start <= steps:
        raise InputError(f"An epoch of {steps} batches cannot start at step {start}; pass 0 to {steps}.")
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(len(data), generator=generator).to(data.images.device)
    chosen = torch.split(order, batch_size)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(start, steps):
            indices = chosen[step] if augment is not none else share(chosen[step], rank, world)
            images = data.images.index_select(0, indices)
            labels = data.labels.index_select(0, indices)
            if device is not None:
                images, labels = images.to(device), labels.to(device)
            if augment is not none:
                images = augment(images, generator.manual_seed(derive_seed(seed, epoch, step)))
                images, labels = share(images, rank, world), share(labels, rank, world)
            yield unit_floats(images.contiguous(memory_format=memory_format)), labels

    return batches()


def share(batch: Tensor, rank: int, world: int) -> Tensor:
    """Every `world`-th element from number `rank` on; a batch with fewer elements than processes goes to each whole.

    >>> [share(torch.arange(5), rank, 2).tolist() for rank in range(2)]
    [[0, 2, 4], [1, 3]]
    >>> [share(torch.arange(1), rank, 2).tolist() for rank in range(2)]
    [[0], [0]]
    """
    return batch[rank::world] if len(batch) >= world > 1 else batch
