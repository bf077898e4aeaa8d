"""Rescale a torch scheduler so that its largest rate is 1/L or 2/L and it keeps its shape."""

import copy
import itertools
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
from excite.schedules import NO_RATE, ROUNDING, scale_base_rates, scheduler_parts

Scheduler = TypeVar("Scheduler", bound=LRScheduler)

USUAL_HORIZON = 1000  # steps in which the largest rate is sought
LONGEST_RISE = 100_000  # steps; a schedule that still rises then is taken to rise without end


def rescale_scheduler(
    scheduler: Scheduler,
    estimate: LipschitzEstimate,
    multiple: float = 1.0,
    *,
    horizon: int | None = None,
    allow_unidentified: bool = False,
) -> Scheduler:
    """Rescale a torch scheduler in place, so that its largest rate is `multiple`/L.

    That is its first rate, or the peak of a warm-up, of OneCycleLR or of CyclicLR. The rates of all parameter groups,
    and absolute rates such as `eta_min` of a cosine, are multiplied by the same factor. ReduceLROnPlateau, which only
    lowers the rate, starts at `multiple`/L. The state_dicts of scheduler and optimizer contain the new rates: to resume
    a run, load them as usual.

    With `multiple=1` no rate exceeds 1/L, as the theorem requires. InputError is raised for a scheduler that has
    already stepped, that rises without end, or that sets absolute rates. `find_learning_rate(scheduler=…)`
    raises the same errors before it searches.

    Args:
        scheduler: any of torch's or of Hugging Face's `get_*_schedule`, before its first `step()`.
        estimate: the estimate of L.
        multiple: 1 for the persistently exciting rate 1/L, 2 for the largest convergent rate 2/L.
        horizon: number of steps in which to look for the largest rate; by default 1,000, or more while it still rises.
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
    if horizon is not None:
        check_whole("horizon", horizon, least=1)
    peak = peak_rate(scheduler, horizon=horizon)
    check_kind("estimate", estimate, "learning_rate", "a LipschitzEstimate, for example of estimate_lipschitz")
    check_reliable(estimate, allow_unidentified=allow_unidentified)
    scale_rates(scheduler.optimizer, [scheduler], estimate.learning_rate(multiple) / peak)
    return scheduler


def check_reliable(estimate: LipschitzEstimate, *, allow_unidentified: bool) -> None:
    """Raise UnidentifiedError if L is not identified, unless that is allowed."""
    if not estimate.reliable and not allow_unidentified:
        raise UnidentifiedError(f"{estimate} To use it anyway, pass allow_unidentified=True.")


def peak_rate(scheduler: LRScheduler, *, horizon: int | None = None) -> float:
    """Return the largest rate of the schedule; raise InputError if it cannot be rescaled."""
    check_kind("scheduler", scheduler, "optimizer", "a torch scheduler")
    kind = type(scheduler).__name__
    steps = max(getattr(part, "last_epoch", 0) for part in scheduler_parts(scheduler))
    if steps > 0:
        raise InputError(
            f"This {kind} has already stepped {steps} times. Rescale a new scheduler. To resume a run, load its "
            "state_dict, which contains the rescaled rates."
        )
    peak, reached = 0.0, 0
    before, after = _copy(scheduler), _copy(scheduler)
    scale_rates(after.optimizer, [after], 2.0)
    for step, (rates, doubled) in enumerate(zip(_future(before), _future(after), strict=False)):
        if max(rates) > peak * (1 + ROUNDING):
            peak, reached = max(rates), step
        if any(
            not math.isclose(new, 2 * old, rel_tol=ROUNDING, abs_tol=ROUNDING * peak)
            for old, new in zip(rates, doubled, strict=True)
        ):
            raise InputError(
                f"{kind} uses absolute rates, so it does not keep its shape when rescaled. Build it again, for an "
                "optimizer with lr=estimate.learning_rate(), or attach schedules.rescale(schedule, …) of your schedule."
            )
        if not math.isfinite(peak) or (horizon is None and step == LONGEST_RISE):
            raise InputError(
                f"This {kind} rises without end: its rate is {peak:g} at step {step}. Pass horizon=…, the number of "
                "steps in a training."
            )
        if step + 1 >= (horizon or USUAL_HORIZON) and (horizon or reached < step):
            break
    if not peak > 0:
        raise InputError(f"All rates of this {kind} are 0; its largest one must be above 0 to be rescaled.")
    return peak


def shape_of(scheduler: LRScheduler, steps: int) -> list[float]:
    """Return the largest rate of the groups at each of `steps` steps, relative to the largest of all.

    A ReduceLROnPlateau has no shape before the training; its rate is taken to be constant.
    """
    peak = max(peak_rate(scheduler), peak_rate(scheduler, horizon=steps))
    if isinstance(scheduler, ReduceLROnPlateau):
        return [1.0]
    rates = [max(of_groups) for of_groups in itertools.islice(_future(_copy(scheduler)), steps)]
    if len(rates) < steps or max(rates) < peak * (1 - ROUNDING):
        raise InputError(
            f"In {steps} steps this {type(scheduler).__name__} "
            + (f"ends after {len(rates)}" if len(rates) < steps else f"reaches only {max(rates):g} of {peak:g}")
            + ". Pass scheduler_steps, the number of calls of scheduler.step() in a whole training."
        )
    return [rate / peak for rate in rates]


def _rates(scheduler: LRScheduler) -> list[float]:
    return [float(group["lr"]) for group in scheduler.optimizer.param_groups]


def scale_rates(optimizer: Optimizer, schedulers: Iterable[LRScheduler], factor: float) -> None:
    """Multiply the rates of `optimizer` and of its `schedulers`."""
    for scheduler in schedulers:
        scale_base_rates(scheduler, factor)
    for group in optimizer.param_groups:
        for name in {"lr", "initial_lr", "max_lr", "min_lr"} & group.keys():  # the last two are OneCycleLR's
            if isinstance(group[name], Tensor):
                group[name].mul_(factor)
            else:
                group[name] *= factor


def _copy(scheduler: Scheduler) -> Scheduler:
    """Return a copy of the scheduler with a separate optimizer."""
    groups: list[dict[str, Any]] = [
        group
        | {"params": [torch.zeros(1, requires_grad=True)]}
        | {key: float(group[key]) for key in ("lr", "initial_lr") if key in group}
        for group in scheduler.optimizer.param_groups
    ]
    return copy.deepcopy(scheduler, {id(scheduler.optimizer): torch.optim.SGD(groups)})


def _future(scheduler: LRScheduler) -> Iterator[list[float]]:
    """The rates of all groups at each step, for as many steps as the schedule is defined."""
    yield _rates(scheduler)
    while not isinstance(scheduler, ReduceLROnPlateau):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the copy's optimizer takes no steps
            try:
                scheduler.step()
                rates = _rates(scheduler)
            except NO_RATE:
                return
        yield rates
