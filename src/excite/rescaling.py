"""Start a torch scheduler at 1/L or 2/L, keeping its shape: ηᵏ = η¹ · γᵏ/γ¹."""

import copy
import math
import warnings
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from excite.errors import InputError, UnidentifiedError
from excite.lipschitz.protocol import LipschitzEstimate
from excite.quantities import check_kind, check_whole
from excite.registry import named_options
from excite.schedules import NO_RATE, ROUNDING, ScheduledRate, scale_base_rates, scheduler_parts

Scheduler = TypeVar("Scheduler", bound=LRScheduler)


@named_options
def rescale_scheduler(
    scheduler: Scheduler,
    estimate: LipschitzEstimate,
    multiple: float = 1.0,
    *,
    horizon: int = 1000,
    allow_unidentified: bool = False,
) -> Scheduler:
    """Rescale a scheduler of torch in place, so that it starts at η¹ = `multiple`/L: ηᵏ = η¹ · γᵏ/γ¹.

    γᵏ are the rates it would have given. Every parameter group is multiplied by the same factor, the one that brings
    the largest of their first rates to `multiple`/L, so no group ever exceeds it. What a scheduler holds in absolute
    terms, `eta_min` of a cosine, is multiplied too. The state_dicts of scheduler and optimizer hold the new rates: to
    resume a run, load them as ever, with or without rescaling first.

    With `multiple=1` the theorem asks that no rate is above 1/L. So a schedule that rises above its first rate within
    `horizon` steps (a warm-up) is refused, and so is one whose rates cannot be known before training. An L that is not
    identified is refused with an UnidentifiedError, unless `allow_unidentified` is set.

    Args:
        scheduler: StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR, LambdaLR, SequentialLR … before its first
            `step()`.
        estimate: where L comes from; only its `learning_rate` is used.
        multiple: 1 for the persistently exciting rate 1/L, 2 for the largest convergent one.
        horizon: how many steps of the schedule are looked at beforehand; no more than training takes, where it is made
            for these.
        allow_unidentified: use an L even if it is not identified.

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
    check_kind("scheduler", scheduler, "optimizer", "a scheduler of torch")
    check_kind(
        "estimate", estimate, "learning_rate", "a LipschitzEstimate, as estimate_lipschitz and find_edge give it"
    )
    check_reliable(estimate, allow_unidentified=allow_unidentified)
    rate = estimate.learning_rate(multiple)
    scale_rates(scheduler.optimizer, [scheduler], rate / first_rate(scheduler, horizon=horizon))
    return scheduler


def check_reliable(estimate: LipschitzEstimate, *, allow_unidentified: bool) -> None:
    """Refuse to train at an L that is not identified, unless that is allowed."""
    if not estimate.reliable and not allow_unidentified:
        raise UnidentifiedError(f"{estimate} To use it all the same, pass allow_unidentified=True.")


def first_rate(scheduler: LRScheduler, *, horizon: int = 1000) -> float:
    """γ¹, the largest of the groups' first rates, of a scheduler that can be rescaled; the others are refused."""
    _refuse_what_has_no_shape(scheduler)
    kind = type(scheduler).__name__
    steps = max(getattr(part, "last_epoch", 0) for part in scheduler_parts(scheduler))
    if steps > 0:
        raise InputError(
            f"This {kind} has already stepped {steps} times. Rescale a new one; to resume a run, load its state after "
            "rescaling, or do not rescale at all: the state holds the new rates."
        )
    first = max(_rates(scheduler))
    before, after = _twin(scheduler), _twin(scheduler)
    scale_rates(after.optimizer, [after], 2.0)
    for step, (rates, doubled) in enumerate(zip(_future(before, horizon), _future(after, horizon), strict=True)):
        if max(rates) > first * (1 + ROUNDING):
            ends = f" If training ends before, pass horizon={step}." if step > 1 else ""
            raise InputError(
                f"This {kind} rises above its first rate: {first:g} at step 0, {max(rates):g} at step {step}. Below "
                "1/L only a schedule that starts at its largest rate is safe: drop the warm-up, or build the schedule "
                f"anew so that its largest rate is estimate.learning_rate().{ends}"
            )
        if any(
            not math.isclose(new, 2 * old, rel_tol=ROUNDING, abs_tol=ROUNDING * first)
            for old, new in zip(rates, doubled, strict=True)
        ):
            raise InputError(
                f"{kind} holds rates in absolute terms, so it does not keep its shape when rescaled. Build it anew, "
                "from an optimizer made with lr=estimate.learning_rate()."
            )
    if not (math.isfinite(first) and first > 0):
        raise InputError(f"The first rate is {first}, which has no multiple at 1/L; start from a rate above 0.")
    return first


def shape_of(scheduler: LRScheduler, steps: int) -> list[float]:
    """The largest rate of the groups at each of `steps` steps, relative to the largest of all."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "ReduceLROnPlateau decides its rates during training; leave it out, so that rates are constant."
        )
    rates = [max(of_groups) for of_groups in _future(_twin(scheduler), steps)]
    if not max(rates) > 0:
        raise InputError(f"This {type(scheduler).__name__} gives no rate above 0 in {steps} steps.")
    return [rate / max(rates) for rate in rates]


def _refuse_what_has_no_shape(scheduler: LRScheduler) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "ReduceLROnPlateau decides its rates during training, so there is no γᵏ to rescale. It never raises the "
            "rate: make its optimizer with lr=estimate.learning_rate(), and leave it as it is."
        )
    if isinstance(scheduler, OneCycleLR | CyclicLR):
        raise InputError(
            f"{type(scheduler).__name__} warms up: it starts below its largest rate, where the rescaled schedule must "
            "start. Take a schedule that only falls, such as CosineAnnealingLR, or pass max_lr=estimate.learning_rate()"
            " to it yourself."
        )
    if isinstance(scheduler, ScheduledRate):
        raise InputError("A schedule of excite is rescaled before it is attached: schedules.rescale(schedule, 1/L).")


def _rates(scheduler: LRScheduler) -> list[float]:
    return [float(group["lr"]) for group in scheduler.optimizer.param_groups]


def scale_rates(optimizer: Optimizer, schedulers: Iterable[LRScheduler], factor: float) -> None:
    """Multiply the rates of `optimizer` and those that its `schedulers` hold."""
    for scheduler in schedulers:
        scale_base_rates(scheduler, factor)
    for group in optimizer.param_groups:
        for name in {"lr", "initial_lr"} & group.keys():
            if isinstance(group[name], Tensor):
                group[name].mul_(factor)
            else:
                group[name] *= factor


def _twin(scheduler: Scheduler) -> Scheduler:
    """A copy that drives an optimizer of nothing."""
    groups: list[dict[str, Any]] = [
        group
        | {"params": [torch.zeros(1, requires_grad=True)]}
        | {key: float(group[key]) for key in ("lr", "initial_lr")}
        for group in scheduler.optimizer.param_groups
    ]
    return copy.deepcopy(scheduler, {id(scheduler.optimizer): torch.optim.SGD(groups)})


def _future(scheduler: LRScheduler, steps: int) -> list[list[float]]:
    rates = [_rates(scheduler)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the twin's optimizer takes no steps
        for step in range(1, steps):
            try:
                scheduler.step()
                rates.append(_rates(scheduler))
            except NO_RATE as error:
                raise InputError(
                    f"{type(scheduler).__name__} has no rate for step {step}: {error}. If training ends before, pass "
                    f"horizon={step}."
                ) from error
    return rates
