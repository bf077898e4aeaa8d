"""A run has lost its way when its loss or its weights are not finite, or its loss is back where it started."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LEARNED = 0.9  # of its initial value: an epoch below this has learned something
MARGIN = 0.02  # of the initial value: what a single first batch may be off by


def diagnose(losses: Sequence[float], initial: float) -> str | None:
    """Say what went wrong, given the mean loss of each epoch so far and the loss of the very first batch.

    A collapse is an epoch clearly above the initial loss, or one that is back at it after an earlier epoch had learned:
    a collapsed classifier guesses, and guessing costs about what an untrained network costs.

    >>> diagnose([0.9, 0.5], initial=2.3) is None
    True
    >>> diagnose([0.9, 2.3], initial=2.3)
    'the loss, 0.9 in the best epoch, is back at 2.3, its initial value'
    """
    last = losses[-1]
    if not math.isfinite(last):
        return f"the loss became {last}"
    if last > initial * (1 + MARGIN):
        return f"the loss over an epoch was {last:.3g}, above its initial value {initial:.3g}"
    if min(losses) < initial * LEARNED and last > initial * (1 - MARGIN):
        return f"the loss, {min(losses):.2g} in the best epoch, is back at {last:.3g}, its initial value"
    return None


def broken_number(model: nn.Module, optimizer: Optimizer) -> str | None:
    """Say which parameter is not finite, or which buffer or optimizer state is not a number, if any.

    >>> model = nn.Linear(2, 1)
    >>> _ = model.weight.data.fill_(math.nan)
    >>> broken_number(model, torch.optim.SGD(model.parameters(), lr=0.1))
    'the parameter weight is no longer finite'
    """
    checks = list(_checks(model, optimizer))
    if not checks or not bool(torch.stack([broken.cpu() for _, broken in checks]).any()):
        return None
    return next(what for what, broken in checks if bool(broken))


def _checks(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"the parameter {name} is no longer finite", ~parameter.detach().isfinite().all()
    for name, buffer in model.named_buffers():  # a mask may well be infinite
        yield f"the buffer {name} is not a number", buffer.isnan().any()
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor):
                yield f"the optimizer's {name} is not a number", value.isnan().any()
