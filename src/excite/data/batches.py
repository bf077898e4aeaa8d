"""The batches of an epoch depend on (seed, epoch) alone, so a run can resume at any step of any epoch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from excite.data.augment import Augmentation, none
from excite.data.dataset import Split, unit_floats
from excite.errors import InputError
from excite.quantities import check_whole
from excite.randomness import generator, usable_device

# Epoch numbers of the two parts of a Mixture in its seeds; real epochs count from 0.
_LABELLED, _PSEUDO = -1, -2


def steps_per_epoch(images: int, batch_size: int, most: int | None = None) -> int:
    """Return the number of batches in an epoch, at most `most`; the last batch may be smaller.

    >>> steps_per_epoch(100, 32), steps_per_epoch(100, 32, most=2)
    (4, 2)
    """
    check_whole("batch_size", batch_size, least=1)
    steps = -(-images // batch_size)
    return steps if most is None else min(steps, most)


def images_at_once(batch_size: int, accumulate: int) -> int:
    """Return the size of each of the `accumulate` equal parts of a batch."""
    if batch_size % accumulate:
        divisor = next((number for number in range(accumulate, batch_size) if batch_size % number == 0), batch_size)
        raise InputError(
            f"A batch of {batch_size:,} images cannot be divided into {accumulate} equal parts. Set "
            f"training.accumulate to a divisor of the batch size, such as {divisor}."
        )
    return batch_size // accumulate


def epoch_batches(
    data: "TrainingData",
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

    Of `world` processes, process `rank` gets every `world`-th image of each part of a batch from number `rank` on, or
    the whole part if it has fewer images than there are processes. Batches are augmented before they are shared, so
    that together the processes see the same images as a single process.
    """
    check_whole("seed", seed, least=0)
    steps = steps_per_epoch(len(data), batch_size)
    device = device if device is None else usable_device(device)
    numbers = data.order(batch_size=batch_size, seed=seed, epoch=epoch)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(start, steps):
            parts = numbers(step)
            images, labels = data.take(parts)
            if device is not None:
                images, labels = (to_device(part, torch.device(device)) for part in (images, labels))
            images = augment(images, generator(seed, epoch, step))
            if world > 1:
                sizes = [len(part) for part in parts]
                images, labels = (_share(torch.split(batch, sizes), rank, world) for batch in (images, labels))
            yield unit_floats(images.contiguous(memory_format=memory_format)), labels

    return batches()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a GPU from pinned memory, so that the host need not wait for the copy."""
    pins = tensor.device.type == "cpu" and device.type not in ("cpu", "mps")
    return tensor.pin_memory().to(device, non_blocking=True) if pins else tensor.to(device)


def _share(parts: Sequence[Tensor], rank: int, world: int) -> Tensor:
    return torch.cat([part[rank::world] if len(part) >= world else part for part in parts])


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
            raise InputError(f"Labelled ({self.labelled}) and pseudo-labelled ({self.pseudo}) images differ in shape.")
        check_whole("epoch_samples", self.epoch_samples, least=1)

    def __len__(self) -> int:
        return self.epoch_samples

    def __str__(self) -> str:
        return f"labelled {self.labelled}, pseudo-labelled {self.pseudo}, {self.epoch_samples:,} per epoch"

    @property
    def parts(self) -> tuple[Split, Split]:
        return self.labelled, self.pseudo

    @property
    def largest_label(self) -> int:
        return max(part.largest_label for part in self.parts)

    @property
    def nbytes(self) -> int:
        return self.labelled.nbytes + self.pseudo.nbytes

    def to(self, device: torch.device) -> "Mixture":
        """Return the same images on another device."""
        return replace(self, labelled=self.labelled.to(device), pseudo=self.pseudo.to(device))

    def order(self, *, batch_size: int, seed: int, epoch: int) -> Callable[[int], tuple[Tensor, ...]]:
        """Return a function from a step to the labelled and the pseudo-labelled image numbers of its batch."""
        earlier, halves = epoch * steps_per_epoch(self.epoch_samples, batch_size), _halves(batch_size)
        parts = list(zip(self.parts, halves, (_LABELLED, _PSEUDO), strict=True))
        return lambda step: tuple(
            _endless_order(len(part), (earlier + step) * half, half, (seed, name)) for part, half, name in parts
        )

    def take(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        taken = [part.take([numbers.to(part.images.device)]) for part, numbers in zip(self.parts, parts, strict=True)]
        images, labels = (torch.cat(halves) for halves in zip(*taken, strict=True))
        return images, labels

    def probe(self, examples: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return as many full batches of fixed images as `examples` allows, at least one, not augmented."""
        size = min(examples, batch_size)
        parts = list(zip(self.parts, _halves(size), strict=True))
        batches = [
            self.take([torch.arange(number * half, (number + 1) * half) % len(part) for part, half in parts])
            for number in range(examples // size)
        ]
        images, labels = (torch.cat(halves) for halves in zip(*batches, strict=True))
        return unit_floats(images), labels


TrainingData = Split | Mixture  # what the training loop takes


def resident(data: TrainingData, device: torch.device, free: int | None = None) -> TrainingData:
    """Return the data on `device` if it is a GPU and they take at most an eighth of its `free` bytes.

    Batches are then taken there. Otherwise each is copied to the device, and the data are returned as they are.
    """
    if free is None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    return data.to(device) if 8 * data.nbytes <= free else data


def _endless_order(n: int, start: int, amount: int, address: tuple[int, ...]) -> Tensor:
    """Return `amount` numbers from position `start` on, where all numbers below `n` are shuffled again and again."""
    rounds = range(start // n, -(-(start + amount) // n))
    return torch.cat([_shuffled(n, *address, i)[max(start - i * n, 0) : start + amount - i * n] for i in rounds])


@lru_cache(maxsize=4)
def _shuffled(n: int, *address: int) -> Tensor:
    return torch.randperm(n, generator=generator(*address))


def _halves(batch_size: int) -> tuple[int, int]:
    """Return how many labelled and how many pseudo-labelled images a batch has."""
    if batch_size < 2:
        raise InputError(f"batch_size is {batch_size}; labelled and pseudo-labelled images need a batch of at least 2.")
    return -(-batch_size // 2), batch_size // 2
