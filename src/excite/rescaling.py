"""Rescale a torch scheduler so that it starts at 1/L or 2/L and keeps its shape: ηᵏ = η¹ · γᵏ/γ¹."""

import copy
import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from excite.errors import InputError, UnidentifiedError
from excite.lipschitz.protocol import LipschitzEstimate
from excite.quantities import check_kind, check_whole
from excite.schedules import NO_RATE, ROUNDING, ScheduledRate, scale_base_rates, scheduler_parts

Scheduler = TypeVar("Scheduler", bound=LRScheduler)


def rescale_scheduler(
    scheduler: Scheduler,
    estimate: LipschitzEstimate,
    multiple: float = 1.0,
    *,
    horizon: int = 1000,
    allow_unidentified: bool = False,
) -> Scheduler:
    """Rescale a torch scheduler in place, so that it starts at η¹ = `multiple`/L: ηᵏ = η¹ · γᵏ/γ¹.

    γᵏ are its rates before. The rates of all parameter groups, and absolute rates such as `eta_min` of a cosine, are
    multiplied by the same factor, which brings the largest first rate to `multiple`/L. The state_dicts of scheduler
    and optimizer contain the new rates: to resume a run, load them as usual.

    With `multiple=1`, the theorem requires that no rate exceeds 1/L. InputError is raised for a schedule that rises
    above its first rate within `horizon` steps (a warm-up) and for one whose rates are not known before training.

    Args:
        scheduler: StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR, LambdaLR, SequentialLR … before its first
            `step()`.
        estimate: the estimate of L.
        multiple: 1 for the persistently exciting rate 1/L, 2 for the largest convergent rate 2/L.
        horizon: how many steps of the schedule to check in advance; at most as many as the schedule is defined for.
        allow_unidentified: use an L that is not identified instead of raising UnidentifiedError.

    Returns:
        The same scheduler.

    >>> from excite.lipschitz import LipschitzEstimate
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    >>> _ = rescale_scheduler(scheduler, LipschitzEstimate(4.0, (4.0, 4.0), "stated", True, "an example"))
    >>> optimizer.step(); scheduler.step()
    >>> optimizer.param_groups[0]["lr"]
    0.125
    """
    check_whole("horizon", horizon, least=1)
    check_kind("scheduler", scheduler, "optimizer", "a torch scheduler")
    check_kind("estimate", estimate, "learning_rate", "a LipschitzEstimate, for example of estimate_lipschitz")
    check_reliable(estimate, allow_unidentified=allow_unidentified)
    rate = estimate.learning_rate(multiple)
    scale_rates(scheduler.optimizer, [scheduler], rate / first_rate(scheduler, horizon=horizon))
    return scheduler


def check_reliable(estimate: LipschitzEstimate, *, allow_unidentified: bool) -> None:
    """Raise UnidentifiedError if L is not identified, unless that is allowed."""
    if not estimate.reliable and not allow_unidentified:
        raise UnidentifiedError(f"{estimate} To use it anyway, pass allow_unidentified=True.")


def first_rate(scheduler: LRScheduler, *, horizon: int = 1000) -> float:
    """Return γ¹, the largest first rate of the groups; raise InputError if the scheduler cannot be rescaled."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "ReduceLROnPlateau chooses its rates during training, so it cannot be rescaled. Because it only lowers the "
            "rate, build its optimizer with lr=estimate.learning_rate() instead."
        )
    if isinstance(scheduler, ScheduledRate):
        raise InputError("Rescale a schedule of excite before you attach it: schedules.rescale(schedule, 1/L).")
    kind = type(scheduler).__name__
    steps = max(getattr(part, "last_epoch", 0) for part in scheduler_parts(scheduler))
    if steps > 0:
        raise InputError(
            f"This {kind} has already stepped {steps} times. Rescale a new scheduler. To resume a run, load its "
            "state_dict, which contains the rescaled rates."
        )
    first = max(_rates(scheduler))
    before, after = _copy(scheduler), _copy(scheduler)
    scale_rates(after.optimizer, [after], 2.0)
    for step, (rates, doubled) in enumerate(zip(_future(before, horizon), _future(after, horizon), strict=True)):
        if max(rates) > first * (1 + ROUNDING):
            ends = f" If training ends before that, pass horizon={step}." if step > 1 else ""
            raise InputError(
                f"This {kind} rises above its first rate: {first:g} at step 0, {max(rates):g} at step {step}. Use a "
                f"schedule without warm-up, or build one whose largest rate is estimate.learning_rate().{ends}"
            )
        if any(
            not math.isclose(new, 2 * old, rel_tol=ROUNDING, abs_tol=ROUNDING * first)
            for old, new in zip(rates, doubled, strict=True)
        ):
            raise InputError(
                f"{kind} uses absolute rates, so it does not keep its shape when rescaled. Build it again, for an "
                "optimizer with lr=estimate.learning_rate()."
            )
    if not (math.isfinite(first) and first > 0):
        raise InputError(f"The first rate is {first}; it must be above 0 to be rescaled.")
    return first


def shape_of(scheduler: LRScheduler, steps: int) -> list[float]:
    """Return the largest rate of the groups at each of `steps` steps, relative to the largest of all."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "ReduceLROnPlateau chooses its rates during training. Leave it out, so that the rate is constant."
        )
    rates = [max(of_groups) for of_groups in _future(_copy(scheduler), steps)]
    if not max(rates) > 0:
        raise InputError(f"All rates of this {type(scheduler).__name__} are 0 in the first {steps} steps.")
    return [rate / max(rates) for rate in rates]


def _rates(scheduler: LRScheduler) -> list[float]:
    return [float(group["lr"]) for group in scheduler.optimizer.param_groups]


def scale_rates(optimizer: Optimizer, schedulers: Iterable[LRScheduler], factor: float) -> None:
    """Multiply the rates of `optimizer` and of its `schedulers`."""
    for scheduler in schedulers:
        scale_base_rates(scheduler, factor)
    for group in optimizer.param_groups:
        for name in {"lr", "initial_lr"} & group.keys():
            if isinstance(group[name], Tensor):
                group[name].mul_(factor)
            else:
                group[name] *= factor


def _copy(scheduler: Scheduler) -> Scheduler:
    """Return a copy of the scheduler with an optimizer of its own."""
    groups: list[dict[str, Any]] = [
        group
        | {"params": [torch.zeros(1, requires_grad=True)]}
        | {key: float(group[key]) for key in ("lr", "initial_lr")}
        for group in scheduler.optimizer.param_groups
    ]
    return copy.deepcopy(scheduler, {id(scheduler.optimizer): torch.optim.SGD(groups)})


def _future(scheduler: LRScheduler, steps: int) -> Iterator[list[float]]:
    """The rates of all groups at each step."""
    yield _rates(scheduler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the copy's optimizer takes no steps
        for step in range(1, steps):
            try:
                scheduler.step()
                rates = _rates(scheduler)
            except NO_RATE as error:
                raise InputError(
                    f"{type(scheduler).__name__} has no rate for step {step}: {error}. If training ends before that, "
                    f"pass horizon={step}."
                ) from error
            yield rates
