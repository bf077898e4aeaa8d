"""Process a batch in parts, so that only one of them is in memory at a time: their losses add up to the batch's."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from excite.errors import InputError
from excite.objectives import Objective, frozen
from excite.training.distributed import Loss


def images_at_once(batch_size: int, accumulate: int) -> int:
    """The size of a part; all parts of a full batch have the same."""
    if batch_size % accumulate:
        divisor = next((number for number in range(accumulate, batch_size) if batch_size % number == 0), batch_size)
        raise InputError(
            f"A batch of {batch_size:,} images cannot be divided into {accumulate} equal parts. Set "
            f"training.accumulate to a divisor of the batch size, such as {divisor}."
        )
    return batch_size // accumulate


def losses_of_parts(
    objective: Objective,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: torch.Generator | None,
    *,
    at_once: int | None = None,
) -> list[Loss]:
    """Attack each part, if the objective is adversarial; return their losses, weighted by size so that they add up."""
    if at_once is None or at_once >= len(y):
        return [frozen(objective, model, x, y, generator)]

    def weighted(part_x: Tensor, part_y: Tensor) -> Loss:
        loss, weight = frozen(objective, model, part_x, part_y, generator), len(part_y) / len(y)
        return lambda: weight * loss()

    return [weighted(*part) for part in zip(torch.split(x, at_once), torch.split(y, at_once), strict=True)]


def added(losses: Sequence[Loss], x: Tensor) -> Loss:
    """The loss of the batch `x`, differentiable one part after the other: each runs again in the backward pass."""
    if len(losses) == 1:
        return losses[0]

    def again(loss: Loss, _: Tensor) -> Tensor:  # the tensor names the device whose random state is repeated
        return loss()

    return lambda: torch.stack([checkpoint(again, loss, x[:0], use_reentrant=False) for loss in losses]).sum()
