"""An epoch's batches are a function of (seed, epoch), so a run can start again at any step of any epoch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from excite.data.augment import Augmentation, none
from excite.data.dataset import Split, unit_floats
from excite.data.seeds import derive_seed
from excite.errors import InputError


def steps_per_epoch(split: Split, batch_size: int) -> int:
    """How many batches one pass over the split takes; the last may be smaller."""
    if batch_size < 1:
        raise InputError(f"A batch needs at least one image; batch_size is {batch_size}.")
    return -(-len(split) // batch_size)


def epoch_batches(
    split: Split,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    augment: Augmentation = none,
    start: int = 0,
    device: torch.device | str | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every image of the split once, in batches of (float32 images in [0, 1], labels), from step `start` on.

    The order follows from (seed, epoch), the augmentation of a batch from (seed, epoch, step).
    Images come on `device` (default: where the split is) in `memory_format`.
    """
    steps = steps_per_epoch(split, batch_size)
    if not 0 <= start <= steps:
        raise InputError(f"An epoch of {steps} batches cannot start at step {start}; pass 0 to {steps}.")
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(len(split), generator=generator).to(split.images.device)
    chosen = torch.split(order, batch_size)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(start, steps):
            images = split.images.index_select(0, chosen[step])
            labels = split.labels.index_select(0, chosen[step])
            if device is not None:
                images, labels = images.to(device), labels.to(device)
            if augment is not none:
                images = augment(images, generator.manual_seed(derive_seed(seed, epoch, step)))
            yield unit_floats(images.contiguous(memory_format=memory_format)), labels

    return batches()
