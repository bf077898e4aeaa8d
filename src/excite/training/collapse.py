"""When a training is lost: numbers that are none, or a loss that is back where guessing is, or above."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LEARNED = 0.1  # of the initial value: an epoch this far below it has learned something
MARGIN = 0.02  # of the initial value: what a single first batch may be off by
TELLING = 64  # images: the loss of a first batch of fewer is luck
STRETCH = 50  # steps that tell a collapse from a bad start,
ENOUGH = 5000  # and images: small batches take more steps to get away from it
HOPELESS = 9  # times the initial value above it: from there nothing comes back


def measured_by(initial: float, guessing: float | None, batch_size: int) -> tuple[float, str]:
    """The loss that a collapse is known by, and what it is: a collapsed network guesses.

    An untrained network guesses, too, so that its first batch tells. That of a network which has learned before does
    not, nor does one of few images: then it is the cost of `guessing`, where that is known.

    >>> measured_by(2.31, math.log(10), 64), measured_by(2.29, math.log(10), 64)
    ((2.31, 'its initial value'), (2.29, 'its initial value'))
    >>> measured_by(0.25, math.log(2), 64)
    (0.6931471805599453, 'the cost of guessing')
    """
    if guessing is None or initial >= guessing * (1 if batch_size < TELLING else 1 - LEARNED):
        return initial, "its initial value"
    return guessing, "the cost of guessing"


def diagnose(
    losses: Sequence[float],
    initial: float,
    *,
    steps: int = STRETCH,
    images: int = ENOUGH,
    over: bool = False,
    ending: float | None = None,
    what: str = "its initial value",
) -> str | None:
    """Say what went wrong, given the mean loss of each epoch so far, and that of the first batch.

    An epoch has so many `steps` and `images`. `what` names another loss that stands in the first batch's place, see
    `measured_by`.

    A collapse is a stretch clearly above the initial loss, or one that is back at it after an earlier one had learned:
    a collapsed classifier guesses, and guessing costs about what an untrained network costs. A stretch is an epoch, or
    where that is short as many as make up its steps and images: a rate that is large at first often costs some, no
    more. One that is below the initial loss again by its `ending`, the later half of the last epoch, is on its way
    down. A training that is `over` before is judged by what there is.

    >>> diagnose([0.9, 0.5], initial=2.3) is None
    True
    >>> diagnose([0.9, 2.3], initial=2.3)
    'the loss, 0.9 in the best epoch, is back at 2.3, its initial value'
    >>> diagnose([2.6], initial=2.3, steps=10) is None
    True
    >>> diagnose([2.6] * 5, initial=2.3, steps=10)
    'the loss over 5 epochs was 2.6, above its initial value 2.3'
    >>> diagnose([2.6], initial=2.3, ending=2.1) is None
    True
    """
    if not math.isfinite(losses[-1]):
        return f"the loss became {losses[-1]}"
    size = abs(initial)  # a loss may be negative
    together = 1 if losses[-1] > initial + HOPELESS * size else _epochs(steps, images)
    together = min(together, len(losses)) if over else together
    means = [fmean(losses[end - together : end]) for end in range(len(losses), together - 1, -together)]
    last, *earlier = means or [initial]
    stretch = "an epoch" if together == 1 else f"{together} epochs"
    if last > initial + MARGIN * size and (losses[-1] if ending is None else ending) > initial:
        return f"the loss over {stretch} was {last:.3g}, above {what} {initial:.3g}"
    if earlier and min(earlier) < initial - LEARNED * size and last > initial - MARGIN * size:
        best = "the best epoch" if together == 1 else f"the best {together} epochs"
        return f"the loss, {min(earlier):.2g} in {best}, is back at {last:.3g}, {what}"
    return None


def _epochs(steps: int, images: int) -> int:
    return max(math.ceil(STRETCH / max(steps, 1)), math.ceil(ENOUGH / max(images, 1)))


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
