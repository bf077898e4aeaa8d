"""The batches of an epoch depend on (seed, epoch) alone, so a run can resume at any step of any epoch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from excite.data.augment import Augmentation, none
from excite.data.dataset import Split, unit_floats
from excite.errors import InputError
from excite.quantities import check_whole
from excite.randomness import generator

# Epoch numbers of the two parts of a Mixture in its seeds; real epochs count from 0.
_LABELLED, _PSEUDO = -1, -2


class TrainingData(Protocol):
    """What the training loop needs of its images; `Split` and `Mixture` provide it."""

    @property
    def epoch_images(self) -> int:
        """The number of images in an epoch."""
        ...

    @property
    def largest_label(self) -> int: ...

    def order(self, *, batch_size: int, seed: int, epoch: int) -> Callable[[int], Sequence[Tensor]]:
        """Return a function from a step to the image numbers of its batch, as one tensor per part of the batch."""
        ...

    def take(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the uint8 images with these numbers, part after part, and their labels."""
        ...

    def probe(self, examples: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return at most `examples` fixed images in [0, 1], not augmented, and their labels, ordered as in batches."""
        ...


def steps_per_epoch(images: int, batch_size: int, most: int | None = None) -> int:
    """Return the number of batches in an epoch, at most `most`; the last batch may be smaller.

    >>> steps_per_epoch(100, 32), steps_per_epoch(100, 32, most=2)
    (4, 2)
    """
    check_whole("batch_size", batch_size, least=1)
    steps = -(-images // batch_size)
    return steps if most is None else min(steps, most)


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
    """Iterate over the batches of an epoch from step `start`: (float32 images in [0, 1], labels).

    The order depends on (seed, epoch), the augmentation of a batch on (seed, epoch, step).
    Batches are on `device` (by default where the data are) in `memory_format`.

    With `world` processes, process `rank` gets its share of every batch, see `share`. Batches are augmented before
    they are shared, so that together the processes see the same images as a single process.
    """
    check_whole("seed", seed, least=0)
    steps = steps_per_epoch(data.epoch_images, batch_size)
    if not 0 <= start <= steps:
        raise InputError(f"start is {start}; an epoch of {steps} batches can start at 0 to {steps}.")
    numbers = data.order(batch_size=batch_size, seed=seed, epoch=epoch)
    parts = numbers(min(start, steps - 1))
    if len(parts) > 1 and min(map(len, parts)) < world:
        raise InputError(
            f"batch_size is {batch_size}; each of {world} processes needs a labelled and a pseudo-labelled image per "
            f"batch. Use a batch size of at least {len(parts) * world}."
        )

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(start, steps):
            parts = numbers(step)
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
    """Return every `world`-th element from number `rank` on; all of them if there are fewer elements than processes.

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


@dataclass(frozen=True, eq=False)
class Mixture:
    """Training data in which half of each batch is labelled images and half is pseudo-labelled images, in this order.

    An epoch has `epoch_samples` images, whatever the sizes of the two parts. Each part is shuffled, used up and
    shuffled again, independently of epochs. If the batch size is odd, the labelled half is larger. Every batch is
    full.
    """

    labelled: Split
    pseudo: Split
    epoch_samples: int = 50_000

    def __post_init__(self) -> None:
        if self.labelled.images.shape[1:] != self.pseudo.images.shape[1:]:
            raise InputError(
                f"The labelled ({self.labelled}) and the pseudo-labelled ({self.pseudo}) images differ in shape. "
                "Convert them to the same shape before labelling."
            )
        check_whole("epoch_samples", self.epoch_samples, least=1)

    def __str__(self) -> str:
        return f"labelled {self.labelled}, pseudo-labelled {self.pseudo}, {self.epoch_samples:,} per epoch"

    @property
    def epoch_images(self) -> int:
        return self.epoch_samples

    @property
    def largest_label(self) -> int:
        return max(self.labelled.largest_label, self.pseudo.largest_label)

    def order(self, *, batch_size: int, seed: int, epoch: int) -> Callable[[int], tuple[Tensor, ...]]:
        """Return a function from a step to the labelled and the pseudo-labelled image numbers of its batch."""
        halves, steps = _halves(batch_size), steps_per_epoch(self.epoch_samples, batch_size)
        orders = (_EndlessOrder(len(self.labelled), seed, _LABELLED), _EndlessOrder(len(self.pseudo), seed, _PSEUDO))

        def numbers(step: int) -> tuple[Tensor, ...]:
            earlier = epoch * steps + step  # batches before this one
            return tuple(order.take(earlier * half, half) for order, half in zip(orders, halves, strict=True))

        return numbers

    def take(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        taken = [
            split.take([numbers.to(split.images.device)])
            for split, numbers in zip((self.labelled, self.pseudo), parts, strict=True)
        ]
        images, labels = (torch.cat(halves) for halves in zip(*taken, strict=True))
        return images, labels

    def probe(self, examples: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return as many full batches of fixed images as `examples` allows, at least one, not augmented."""
        size = min(examples, batch_size)
        batches = [
            self.take(
                [
                    torch.arange(number * half, (number + 1) * half) % len(split)
                    for split, half in zip((self.labelled, self.pseudo), _halves(size), strict=True)
                ]
            )
            for number in range(examples // size)
        ]
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return unit_floats(images), labels


def resident(data: TrainingData, device: torch.device, free: int | None = None) -> TrainingData:
    """Return the data on `device` if it is a GPU and they take at most an eighth of its `free` bytes.

    Batches are then taken there. Otherwise each is copied to the device, and the data are returned as they are.
    """
    if free is None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    splits = (data.labelled, data.pseudo) if isinstance(data, Mixture) else (data,)
    own = [split for split in splits if isinstance(split, Split) and split.images.device != device]
    if not own or len(own) < len(splits) or 8 * sum(split.images.nbytes for split in own) > free:
        return data
    moved = [split.to(device) for split in own]
    return replace(data, labelled=moved[0], pseudo=moved[1]) if isinstance(data, Mixture) else moved[0]


class _EndlessOrder:
    """All numbers below `n` in random order, then all of them in another random order, and so on."""

    def __init__(self, n: int, seed: int, part: int) -> None:
        self._n, self._seed, self._part = n, seed, part
        self._round, self._order = -1, torch.empty(0, dtype=torch.int64)

    def take(self, position: int, amount: int) -> Tensor:
        """Return `amount` numbers from `position` on."""
        taken = []
        while amount > 0:
            round_, first = divmod(position, self._n)
            taken.append(self._permutation(round_)[first : first + amount])
            position, amount = position + len(taken[-1]), amount - len(taken[-1])
        return torch.cat(taken)

    def _permutation(self, round_: int) -> Tensor:
        if round_ != self._round:
            order = torch.randperm(self._n, generator=generator(self._seed, self._part, round_))
            self._round, self._order = round_, order
        return self._order


def _halves(batch_size: int) -> tuple[int, int]:
    """Return how many labelled and how many pseudo-labelled images a batch has."""
    if batch_size < 2:
        raise InputError(f"batch_size is {batch_size}; labelled and pseudo-labelled images need a batch of at least 2.")
    return -(-batch_size // 2), batch_size // 2
