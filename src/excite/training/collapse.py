"""Detect a diverged training: non-finite values, or a loss that has risen to or above its initial value."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean, stdev

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LEARNED = 0.1  # of the initial value: an epoch this far below it has learned something
MARGIN = 0.02  # of the initial value: a smaller rise is not a collapse
TELLING = 64  # images: the loss of a smaller first batch is too random
STRETCH = 50  # steps that distinguish a collapse from a bad start,
ENOUGH = 5000  # and images: small batches take more steps to recover
HOPELESS = 9  # times the initial value: a loss that has risen this much does not recover
STANDARD_ERRORS = 4  # by which a mean loss may exceed the starting level by chance


def measured_by(initial: float, guessing: float | None, batch_size: int) -> tuple[float, str]:
    """Return the loss of a collapsed network, and its name in messages.

    A collapsed network guesses, and so does an untrained one: its first loss is the reference. For a pretrained
    network, or a small first batch, the reference is the loss of `guessing`, if that is known.

    >>> measured_by(2.31, math.log(10), 64), measured_by(2.29, math.log(10), 64)
    ((2.31, 'its initial value'), (2.29, 'its initial value'))
    >>> measured_by(0.25, math.log(2), 64)
    (0.6931471805599453, 'the cost of guessing')
    """
    if guessing is None or initial >= guessing * (1 if batch_size < TELLING else 1 - LEARNED):
        return initial, "its initial value"
    return guessing, "the cost of guessing"


def highest_by_chance(first: Sequence[float], again: Sequence[float], steps: int) -> float:
    """Return the highest mean loss over `steps` batches that does not show a rise above the starting level.

    `first` are the losses of the first steps of the training, `again` those of the same batches, and perhaps of further
    ones, with the current weights. An easy first batch has a loss below the starting level. `again` shows how easy it
    is, so the starting level is estimated as first[0] + mean(again) - again[0]; the result is four standard errors
    above that. It is -inf if the batches have risen by more than 2%, or have fallen more than the first one has.

    >>> unmoved = [2.0, 2.4, 2.5, 2.3]
    >>> round(highest_by_chance(unmoved, unmoved, steps=100), 2)  # 2.3 + 4 · 0.11
    2.74
    >>> highest_by_chance(unmoved, [2.0, 2.6, 2.7, 2.5], steps=100)
    -inf
    """
    if not all(map(math.isfinite, again)):
        return -math.inf
    falls = [before - after for before, after in zip(first, again, strict=False)]
    margin = MARGIN * abs(first[0])
    if falls[0] < -margin or not -margin <= fmean(falls) <= falls[0] + margin:
        return -math.inf
    standard_error = stdev(again) * math.sqrt(1 / len(again) + 1 / max(steps, 1))
    return first[0] + fmean(again) - again[0] + STANDARD_ERRORS * standard_error


def diagnose(
    losses: Sequence[float],
    initial: float,
    *,
    steps: int = STRETCH,
    images: int = ENOUGH,
    over: bool = False,
    ending: float | None = None,
    what: str = "its initial value",
    by_chance: float = -math.inf,
) -> str | None:
    """Describe the problem of a diverged training; return None if it has not diverged.

    A training has collapsed if the mean loss over a stretch is more than 2% above `initial`, or back at `initial` after
    an earlier stretch was 10% below it. A stretch is one epoch, or as many as it takes to reach 50 steps and 5,000
    images, because a large rate often raises the loss for the first few steps only.

    Args:
        losses: mean loss of each epoch so far.
        initial: loss of the first batch, or the loss that `measured_by` puts in its place.
        steps: steps per epoch.
        images: images per epoch.
        over: whether the training ends here. If so, a stretch may be shorter.
        ending: mean loss over the second half of the last epoch. If it is not above `initial`, the loss is on its way
            down, and a stretch above `initial` is not a collapse.
        what: name of `initial` in the message.
        by_chance: a stretch whose mean is at most this is not above `initial`, see `highest_by_chance`.

    >>> diagnose([0.9, 0.5], initial=2.3) is None
    True
    >>> diagnose([0.9, 2.3], initial=2.3)
    'the loss, 0.9 in the best epoch, is back at 2.3, its initial value'
    >>> diagnose([2.6], initial=2.3, steps=10) is None
    True
    >>> diagnose([2.6] * 5, initial=2.3, steps=10)
    'the loss over 5 epochs was 2.6, above its initial value 2.3'
    """
    if not math.isfinite(losses[-1]):
        return f"the loss became {losses[-1]}"
    size = abs(initial)  # a loss may be negative
    together = max(math.ceil(STRETCH / max(steps, 1)), math.ceil(ENOUGH / max(images, 1)))
    together = 1 if losses[-1] > initial + HOPELESS * size else together
    together = min(together, len(losses)) if over else together
    means = [fmean(losses[end - together : end]) for end in range(len(losses), together - 1, -together)]
    last, *earlier = means or [initial]
    stretch = "an epoch" if together == 1 else f"{together} epochs"
    above = last > max(initial + MARGIN * size, by_chance)
    if above and (losses[-1] if ending is None else ending) > initial:
        return f"the loss over {stretch} was {last:.3g}, above {what} {initial:.3g}"
    if earlier and min(earlier) < initial - LEARNED * size and last > initial - MARGIN * size:
        best = "the best epoch" if together == 1 else f"the best {together} epochs"
        return f"the loss, {min(earlier):.2g} in {best}, is back at {last:.3g}, {what}"
    return None


def overfitted(epochs: Sequence[Mapping[str, float]]) -> str | None:
    """Describe catastrophic overfitting at the first epoch that shows it; `epochs` are the numbers of all epochs.

    The accuracy under PGD is less than half of its best so far, that under a single step is no lower than it was then.

    >>> robust, not_robust = (dict(pgd_accuracy=p, single_step_accuracy=s) for p, s in ((0.3, 0.4), (0.1, 0.8)))
    >>> print(overfitted([robust, not_robust])[:35])
    Catastrophic overfitting in epoch 2
    >>> overfitted([robust, not_robust, not_robust]), overfitted([{}])
    (None, None)
    """
    known = [(epoch["pgd_accuracy"], epoch["single_step_accuracy"]) for epoch in epochs if "pgd_accuracy" in epoch]
    bests = accumulate(known, max)
    shows = [pgd < best / 2 and step >= then for (pgd, step), (best, then) in zip(known, bests, strict=True)]
    if not any(shows[-1:]) or any(shows[:-1]):
        return None
    return (
        f"Catastrophic overfitting in epoch {len(epochs)}: accuracy under PGD fell from {max(known)[0]:.0%} to "
        f"{known[-1][0]:.0%}, while that under a single step is {known[-1][1]:.0%}. The network is not robust. Raise "
        "the noise, lower the rate, or train with pgd_at."
    )


def broken_number(model: nn.Module, optimizer: Optimizer) -> str | None:
    """Say which parameter is not finite, or which buffer or optimizer state is not a number, if any.

    >>> model = nn.Linear(2, 1)
    >>> _ = model.weight.data.fill_(math.nan)
    >>> broken_number(model, torch.optim.SGD(model.parameters(), lr=0.1))
    'the parameter weight is not finite'
    """
    checks = [(f"the parameter {name} is not finite", ~p.isfinite().all()) for name, p in model.named_parameters()]
    checks += [(f"the buffer {name} is not a number", buffer.isnan().any()) for name, buffer in model.named_buffers()]
    for state in optimizer.state.values():
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        checks += [(f"the optimizer's {name} is not a number", value.isnan().any()) for name, value in tensors.items()]
    broken = torch.stack([bad.cpu() for _, bad in checks]).tolist() if checks else []
    return next((what for (what, _), bad in zip(checks, broken, strict=True) if bad), None)
