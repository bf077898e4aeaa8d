"""An epoch's batches are a function of (seed, epoch), so a run can start again at any step of any epoch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from excite.data.augment import Augmentation, none
from excite.data.dataset import unit_floats
from excite.errors import InputError
from excite.quantities import check_whole
from excite.randomness import generator
from excite.registry import named_options


class TrainingData(Protocol):
    """What training asks of its images, whatever they are: `Split` and `Mixture` answer."""

    @property
    def epoch_images(self) -> int:
        """How many images an epoch counts."""
        ...

    @property
    def largest_label(self) -> int: ...

    def order(self, *, batch_size: int, seed: int, epoch: int) -> Callable[[int], Sequence[Tensor]]:
        """From a step of the epoch to the images of its batch, by number; several processes share out each part."""
        ...

    def take(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The uint8 images of these numbers, part after part, and their labels."""
        ...

    def probe(self, examples: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Fixed images in [0, 1], not augmented, at most `examples`, and their labels; in the order of batches."""
        ...


@named_options
def steps_per_epoch(images: int, batch_size: int, most: int | None = None) -> int:
    """How many batches an epoch of so many images takes, the last perhaps a smaller one; `most` cuts it short.

    >>> steps_per_epoch(100, 32), steps_per_epoch(100, 32, most=2)
    (4, 2)
    """
    check_whole("batch_size", batch_size, least=1)
    whole = -(-images // batch_size)
    return whole if most is None else min(whole, most)


@named_options
def epoch_batches(
    data: TrainingData,
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
    """The images of an epoch in batches of (float32 images in [0, 1], labels), from step `start` on.

    The order follows from (seed, epoch), the augmentation of a batch from (seed, epoch, step).
    Images come on `device` (default: where the data are) in `memory_format`.

    Of `world` processes, number `rank` gets its share of every batch, see `share`. A batch is augmented before it is
    shared out, so the shares together are the very images that a single process sees.
    """
    check_whole("seed", seed, least=0)
    steps = steps_per_epoch(data.epoch_images, batch_size)
    if not 0 <= start <= steps:
        raise InputError(f"An epoch of {steps} batches cannot start at step {start}; pass 0 to {steps}.")
    chosen = data.order(batch_size=batch_size, seed=seed, epoch=epoch)
    _check_shares(chosen(min(start, steps - 1)), batch_size, world)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(start, steps):
            parts = chosen(step)
            shared = parts if augment is not none else [share(part, rank, world) for part in parts]
            images, labels = data.take(shared)
            if device is not None:
                images, labels = images.to(device), labels.to(device)
            if augment is not none:
                images = augment(images, generator(seed, epoch, step))
                images, labels = (_shares(batch, parts, rank, world) for batch in (images, labels))
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


def _shares(batch: Tensor, parts: Sequence[Tensor], rank: int, world: int) -> Tensor:
    if world == 1:
        return batch
    return torch.cat([share(part, rank, world) for part in torch.split(batch, [len(part) for part in parts])])


def _check_shares(parts: Sequence[Tensor], batch_size: int, world: int) -> None:
    if len(parts) > 1 and min(map(len, parts)) < world:
        raise InputError(
            f"Each of {world} processes needs an image of every part of a batch; batches of {batch_size} are too "
            f"small. Use batches of {len(parts) * world} or more."
        )
