"""A training set whose every batch is half labelled images, half pseudo-labelled ones, in that order."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from excite.data.augment import Augmentation, none
from excite.data.batches import share
from excite.data.dataset import Split, unit_floats
from excite.errors import InputError
from excite.randomness import derive_seed

# Where the orders of the two parts draw their seeds: epochs count from 0, so no epoch's seed is one of these.
_LABELLED, _PSEUDO = -1, -2


@dataclass(frozen=True, eq=False)
class Mixture:
    """An epoch counts `epoch_samples` images, whatever the sizes of the two parts.

    Each part goes through all its images in a random order, then through another, and so on; where an epoch ends, its
    order is not yet at its end. The labelled part of a batch is its first half, rounded up; all batches are full.
    """

    labelled: Split
    pseudo: Split
    epoch_samples: int = 50_000

    def __post_init__(self) -> None:
        if self.labelled.images.shape[1:] != self.pseudo.images.shape[1:]:
            raise InputError(
                f"The labelled ({self.labelled}) and the pseudo-labelled ({self.pseudo}) images differ in shape. "
                "Bring them to one shape before labelling."
            )
        if self.epoch_samples < 1:
            raise InputError(f"An epoch counts at least one image; epoch_samples is {self.epoch_samples}.")

    def __str__(self) -> str:
        return f"labelled {self.labelled}, pseudo-labelled {self.pseudo}, {self.epoch_samples:,} an epoch"

    def steps(self, batch_size: int) -> int:
        """How many batches an epoch has."""
        return mixed_steps(self.epoch_samples, batch_size)

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
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """What `epoch_batches` is to a Split: (float32 images in [0, 1], labels) from step `start` on.

        A batch and its augmentation follow from (seed, epoch, step). Of `world` processes each gets its share of both
        halves, in the order of a batch.
        """
        steps = self.steps(batch_size)
        if batch_size // 2 < world:
            raise InputError(
                f"Each of {world} processes needs an image of both halves of a batch; batches of {batch_size} are too "
                f"small. Use batches of {2 * world} or more."
            )
        if not 0 <= start <= steps:
            raise InputError(f"An epoch of {steps} batches cannot start at step {start}; pass 0 to {steps}.")
        halves = (-(-batch_size // 2), batch_size // 2)
        orders = (_Order(len(self.labelled), seed, _LABELLED), _Order(len(self.pseudo), seed, _PSEUDO))

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for step in range(start, steps):
                turn = epoch * steps + step
                labelled, pseudo = (order.take(turn * half, half) for order, half in zip(orders, halves, strict=True))
                if augment is none:
                    labelled, pseudo = share(labelled, rank, world), share(pseudo, rank, world)
                images, labels = self._gather(labelled, pseudo)
                if device is not None:
                    images, labels = images.to(device), labels.to(device)
                if augment is not none:
                    generator = torch.Generator().manual_seed(derive_seed(seed, epoch, step))
                    images = _shares(augment(images, generator), halves[0], rank, world)
                    labels = _shares(labels, halves[0], rank, world)
                yield unit_floats(images.contiguous(memory_format=memory_format)), labels

        return batches()

    def probe(self, examples: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Fixed images, not augmented, and their labels: as many whole batches as `examples` allow, at least one.

        Cut into pieces of the batch size, every piece is a batch: labelled first.
        """
        size = min(examples, batch_size)
        _check_batch_size(size)
        labelled, pseudo = -(-size // 2), size // 2
        pieces = [
            self._gather(
                torch.arange(piece * labelled, (piece + 1) * labelled) % len(self.labelled),
                torch.arange(piece * pseudo, (piece + 1) * pseudo) % len(self.pseudo),
            )
            for piece in range(examples // size)
        ]
        images, labels = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        return unit_floats(images), labels

    def _gather(self, labelled: Tensor, pseudo: Tensor) -> tuple[Tensor, Tensor]:
        parts = [
            (split, chosen.to(split.images.device))
            for split, chosen in ((self.labelled, labelled), (self.pseudo, pseudo))
        ]
        images = torch.cat([split.images.index_select(0, chosen) for split, chosen in parts])
        return images, torch.cat([split.labels.index_select(0, chosen) for split, chosen in parts])


def mixed_steps(epoch_samples: int, batch_size: int) -> int:
    """How many full batches count `epoch_samples` images or just above."""
    _check_batch_size(batch_size)
    return -(-epoch_samples // batch_size)


def probe_of(data: Split | Mixture, examples: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Fixed training images and their labels, at most `examples`; of a mixture in the order of its batches."""
    if isinstance(data, Mixture):
        return data.probe(examples, batch_size)
    return unit_floats(data.images[:examples]), data.labels[:examples]


def _shares(batch: Tensor, labelled: int, rank: int, world: int) -> Tensor:
    return torch.cat([share(half, rank, world) for half in (batch[:labelled], batch[labelled:])])


class _Order:
    """All numbers below `n` in random order, then all of them in another, and so on for ever."""

    def __init__(self, n: int, seed: int, part: int) -> None:
        self._n, self._seed, self._part = n, seed, part
        self._round, self._order = -1, torch.empty(0, dtype=torch.int64)

    def take(self, position: int, amount: int) -> Tensor:
        """`amount` of them from `position` on."""
        taken = []
        while amount > 0:
            round_, first = divmod(position, self._n)
            taken.append(self._permutation(round_)[first : first + amount])
            position, amount = position + len(taken[-1]), amount - len(taken[-1])
        return torch.cat(taken)

    def _permutation(self, round_: int) -> Tensor:
        if round_ != self._round:
            generator = torch.Generator().manual_seed(derive_seed(self._seed, self._part, round_))
            self._round, self._order = round_, torch.randperm(self._n, generator=generator)
        return self._order


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 2:
        raise InputError(
            f"A batch of labelled and pseudo-labelled images needs at least one of each; its size is {batch_size}."
        )
