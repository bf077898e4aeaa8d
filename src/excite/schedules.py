"""A schedule is a plain function of an epoch; `rescale` makes a baseline's γᵏ persistently exciting, `attach` uses it.

Epochs are counted from 0 here and from 1 in the paper: γ¹ is `schedule(0)`.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from excite.errors import InputError
from excite.quantities import check_number, check_positive, check_whole
from excite.registry import named_options

Schedule = Callable[[int], float]

ROUNDING = 1e-6  # relative: a schedule may multiply step by step
NO_RATE = (ArithmeticError, LookupError, TypeError, ValueError)  # what a schedule may raise past its end


@named_options
def constant(rate: float) -> Schedule:
    """γᵏ = rate.

    >>> constant(0.1)(99)
    0.1
    """
    check_positive("rate", rate)
    return lambda epoch: rate  # noqa: ARG005


@named_options
def step(rate: float, *, milestones: Iterable[int], factor: float = 0.1) -> Schedule:
    """γᵏ = rate · factor^(number of milestones reached); a milestone is the first epoch with the new rate.

    "Every 50 of 150 epochs" is `milestones=range(50, 150, 50)`. One at or after the last epoch is never reached.

    >>> schedule = step(0.5, milestones=(2, 3), factor=0.5)
    >>> [schedule(epoch) for epoch in range(5)]
    [0.5, 0.5, 0.25, 0.125, 0.125]
    """
    check_positive("rate", rate)
    check_positive("factor", factor)
    if not isinstance(milestones, Iterable):
        raise InputError(f"milestones is {milestones!r}; it must be several epochs, such as (50, 100).")
    reached = tuple(milestones)
    for milestone in reached:
        check_whole("A milestone", milestone)
    if reached != tuple(sorted(set(reached))) or any(milestone < 1 for milestone in reached):
        raise InputError(f"Milestones {reached} must be epochs from 1 on, each once, in rising order: sort them.")
    return lambda epoch: rate * factor ** sum(milestone <= epoch for milestone in reached)


@named_options
def exponential(rate: float, *, decay: float) -> Schedule:
    """γᵏ = rate · decayᵏ.

    >>> [exponential(0.4, decay=0.5)(epoch) for epoch in range(3)]
    [0.4, 0.2, 0.1]
    """
    check_positive("rate", rate)
    check_number("decay", decay)
    if not 0 < decay <= 1:
        raise InputError(f"decay={decay} must lie above 0 and at most at 1; 0.95 loses 5% per epoch.")
    return lambda epoch: rate * decay**epoch


@named_options
def cosine(rate: float, *, epochs: int) -> Schedule:
    """γᵏ = rate · ½(1 + cos(kπ/epochs)); 0 from `epochs` on, where the run is over.

    >>> [round(cosine(0.4, epochs=4)(epoch), 3) for epoch in (0, 2, 4)]
    [0.4, 0.2, 0.0]
    """
    check_positive("rate", rate)
    check_whole("epochs", epochs)
    if epochs < 1:
        raise InputError(f"A cosine over {epochs} epochs has no shape; pass the length of the run, at least 1.")
    return lambda epoch: rate * 0.5 * (1 + math.cos(min(epoch / epochs, 1) * math.pi))


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "step": step,
    "exponential": exponential,
    "cosine": cosine,
}


@named_options
def rescale(schedule: Schedule, first: float, *, horizon: int = 1000) -> Schedule:
    """ηᵏ = η¹ · γᵏ/γ¹: the shape of the baseline `schedule` (γ), started at `first` (η¹).

    With η¹ = 1/L every later rate must stay at or below 1/L, so a baseline that rises above its first value within
    `horizon` epochs is refused. Where it is made for fewer epochs, pass their number.

    >>> poe = rescale(step(0.1, milestones=(2,)), 0.25)
    >>> [round(poe(epoch), 4) for epoch in range(4)]
    [0.25, 0.25, 0.025, 0.025]
    """
    check_positive("first", first)
    _check_schedule(schedule)
    baseline_first = schedule(0)  # γ¹
    check_positive("the baseline's first rate", baseline_first)
    check_whole("horizon", horizon, least=1)
    for epoch in range(horizon):
        try:
            rate = _usable(schedule(epoch), epoch)
        except NO_RATE as error:
            raise InputError(
                f"The baseline has no rate for epoch {epoch}: {str(error).rstrip('.')}. If training ends before, pass "
                f"horizon={epoch}."
            ) from error
        if rate > baseline_first * (1 + ROUNDING):
            raise InputError(
                f"The baseline rises above its first rate: {baseline_first:g} at epoch 0, {rate:g} at epoch {epoch}. "
                "Start the baseline at its largest rate (drop the warm-up), or, if training ends before, pass "
                f"horizon={epoch}."
            )
    return lambda epoch: first * (schedule(epoch) / baseline_first)


@named_options
def attach(optimizer: Optimizer, schedule: Schedule, *, leader: int | None = None) -> "ScheduledRate":
    """Let `schedule` set the learning rate of `optimizer`, from epoch 0 at once; call `.step()` after each epoch.

    Where parameter groups have different rates, the schedule is that of the group `leader`, and the others keep the
    ratio to it that they started with. Without `leader` it is the group that starts at the schedule's first rate; if
    none does, or several ways are possible, the call is refused.
    """
    _check_schedule(schedule)
    rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    for number, rate in enumerate(rates):
        if not (math.isfinite(rate) and rate >= 0):
            raise InputError(f"lr of the optimizer's group {number} is {rate}; give it a finite rate, such as 0.1.")
    leader = _leader(rates, _usable(schedule(0), 0)) if leader is None else leader
    check_whole("leader", leader, least=0)
    if leader >= len(rates):
        raise InputError(f"leader={leader}, but the optimizer has {len(rates)} parameter groups, counted from 0.")
    check_positive(f"lr of the optimizer's {'first group' if leader == 0 else f'group {leader}'}", rates[leader])
    return ScheduledRate(optimizer, schedule, leader)


def _leader(rates: list[float], first: float) -> int:
    """The group whose rate a schedule that starts at `first` means."""
    different = sorted(set(rates) - {0.0})
    if len(different) <= 1:
        return next((number for number, rate in enumerate(rates) if rate), 0) if rates[0] == 0 and different else 0
    starting = [number for number, rate in enumerate(rates) if math.isclose(rate, first, rel_tol=1e-9)]
    if starting:
        return starting[0]
    ways = (
        f"leader={rates.index(rate)} ({', '.join(f'{first * other / rate:.4g}' for other in rates)})"
        for rate in different
    )
    raise InputError(
        f"The parameter groups have the rates {', '.join(f'{rate:g}' for rate in rates)}; which of them does a "
        f"schedule that starts at {first:g} mean? Pass {' or '.join(ways)}, or start one of the groups at {first:g}."
    )


class ScheduledRate(LRScheduler):
    """A torch scheduler around a `Schedule`; its state_dict holds plain values, loading it sets the rate at once."""

    def __init__(self, optimizer: Optimizer, schedule: Schedule, leader: int = 0) -> None:
        self.schedule, self.leader = schedule, leader
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        return [*self.rates(self.last_epoch)]

    def rates(self, epoch: int) -> list[float]:
        """Of every parameter group."""
        rate = _usable(self.schedule(epoch), epoch)
        return [rate * float(base / self.base_lrs[self.leader]) for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        rates = {name: [float(rate) for rate in getattr(self, name)] for name in ("base_lrs", "_last_lr")}
        return {key: value for key, value in super().state_dict().items() if key != "schedule"} | rates

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = self.optimizer.param_groups
        if len(state_dict["base_lrs"]) != len(groups):
            raise InputError(
                f"The saved schedule drove {len(state_dict['base_lrs'])} parameter groups, the optimizer has "
                f"{len(groups)}; build the optimizer as in the saved run."
            )
        super().load_state_dict(state_dict)
        for group, rate in zip(groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def scheduler_parts(scheduler: LRScheduler) -> list[LRScheduler]:
    """A scheduler of torch and, of a SequentialLR or ChainedScheduler, all it is made of."""
    return [scheduler, *(part for inner in getattr(scheduler, "_schedulers", ()) for part in scheduler_parts(inner))]


def scale_base_rates(scheduler: LRScheduler, factor: float) -> None:
    """Multiply the rates that a scheduler of torch holds: base rates, last rates and a cosine's `eta_min`.

    The current rates of the optimizer stay as they are.
    """
    for part in scheduler_parts(scheduler):
        for name in ("base_lrs", "_last_lr"):
            if hasattr(part, name):
                setattr(part, name, [rate * factor for rate in getattr(part, name)])
        for name in ("eta_min", "min_lr"):
            if hasattr(part, name):
                setattr(part, name, getattr(part, name) * factor)


def _check_schedule(schedule: Schedule) -> None:
    if not callable(schedule):
        raise InputError(
            f"A schedule is a function of the epoch, not {schedule!r}: for one rate, pass schedules.constant(0.1)."
        )


def _usable(rate: float, epoch: int) -> float:
    """A rate that a schedule gave, which may have decayed to 0."""
    check_number(f"The schedule's rate at epoch {epoch}", rate)
    if not (math.isfinite(rate) and rate >= 0):
        raise InputError(f"The schedule gives the rate {rate} at epoch {epoch}; it must be finite and not negative.")
    return rate
