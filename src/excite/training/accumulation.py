"""Process a batch in parts, so that only one of them is in memory at a time: their losses add up to the batch's."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from excite.errors import InputError
from excite.objectives import Objective, frozen
from excite.training.distributed import ALONE, Loss, Ranks


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
    ranks: Ranks = ALONE,
) -> list[Loss]:
    """Attack each part, if the objective is adversarial; return their losses, weighted by size so that they add up."""
    size = at_once or len(y)
    parts = list(zip(torch.split(x, size), torch.split(y, size), strict=True))

    def weighted(x: Tensor, y: Tensor, weight: float) -> Loss:
        loss = ranks.share(frozen(objective, model, x, y, generator), len(y))
        return loss if len(parts) == 1 else lambda: weight * loss()

    return [weighted(*part, len(part[1]) / len(y)) for part in parts]


def added(losses: Sequence[Loss], x: Tensor) -> Loss:
    """The loss of the batch `x`, differentiable one part after the other: each runs again in the backward pass."""
    if len(losses) == 1:
        return losses[0]

    def again(loss: Loss, _: Tensor) -> Tensor:  # the tensor names the device whose random state is repeated
        return loss()

    return lambda: torch.stack([checkpoint(again, loss, x[:0], use_reentrant=False) for loss in losses]).sum()
