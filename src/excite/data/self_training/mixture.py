"""A training set whose every batch is half labelled images, half pseudo-labelled ones, in that order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from excite.data.batches import steps_per_epoch
from excite.data.dataset import Split, unit_floats
from excite.errors import InputError
from excite.randomness import generator
from excite.registry import with_named_options

# Where the orders of the two parts draw their seeds: epochs count from 0, so no epoch's seed is one of these.
_LABELLED, _PSEUDO = -1, -2


@with_named_options
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

    @property
    def epoch_images(self) -> int:
        return self.epoch_samples

    @property
    def largest_label(self) -> int:
        return max(self.labelled.largest_label, self.pseudo.largest_label)

    def order(self, *, batch_size: int, seed: int, epoch: int) -> Callable[[int], tuple[Tensor, ...]]:
        """From a step to the labelled and the pseudo-labelled images of its batch."""
        halves, steps = _halves(batch_size), steps_per_epoch(self.epoch_samples, batch_size)
        orders = (_Order(len(self.labelled), seed, _LABELLED), _Order(len(self.pseudo), seed, _PSEUDO))

        def chosen(step: int) -> tuple[Tensor, ...]:
            turn = epoch * steps + step
            return tuple(order.take(turn * half, half) for order, half in zip(orders, halves, strict=True))

        return chosen

    def take(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        taken = [
            split.take([chosen.to(split.images.device)])
            for split, chosen in zip((self.labelled, self.pseudo), parts, strict=True)
        ]
        images, labels = (torch.cat(both) for both in zip(*taken, strict=True))
        return images, labels

    def probe(self, examples: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Fixed images, not augmented, and their labels: as many whole batches as `examples` allow, at least one.

        Cut into pieces of the batch size, every piece is a batch: labelled first.
        """
        size = min(examples, batch_size)
        labelled, pseudo = _halves(size)
        pieces = [
            self.take(
                (
                    torch.arange(piece * labelled, (piece + 1) * labelled) % len(self.labelled),
                    torch.arange(piece * pseudo, (piece + 1) * pseudo) % len(self.pseudo),
                )
            )
            for piece in range(examples // size)
        ]
        images, labels = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        return unit_floats(images), labels


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
            order = torch.randperm(self._n, generator=generator(self._seed, self._part, round_))
            self._round, self._order = round_, order
        return self._order


def _halves(batch_size: int) -> tuple[int, int]:
    """How many labelled and how many pseudo-labelled images a batch has."""
    if batch_size < 2:
        raise InputError(
            f"A batch of labelled and pseudo-labelled images needs at least one of each; its size is {batch_size}."
        )
    return -(-batch_size // 2), batch_size // 2
