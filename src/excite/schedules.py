"""A schedule is a function from an epoch to a learning rate; `rescale` starts it at 1/L, `attach` gives it to torch.

Epochs count from 0 here and from 1 in the paper: γ¹ is `schedule(0)`.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from excite.errors import InputError
from excite.quantities import check_number, check_positive, check_whole

Schedule = Callable[[int], float]

ROUNDING = 1e-6  # relative tolerance for schedules that multiply step by step
NO_RATE = (ArithmeticError, LookupError, TypeError, ValueError)  # what a schedule may raise past its end


def constant(rate: float) -> Schedule:
    """γᵏ = rate.

    >>> constant(0.1)(99)
    0.1
    """
    check_positive("rate", rate)
    return lambda epoch: rate  # noqa: ARG005


def step(rate: float, *, milestones: Iterable[int], factor: float = 0.1) -> Schedule:
    """γᵏ = rate · factor^(number of milestones reached); a milestone is the first epoch with the new rate.

    "Every 50 of 150 epochs" is `milestones=range(50, 150, 50)`.

    >>> schedule = step(0.5, milestones=(2, 3), factor=0.5)
    >>> [schedule(epoch) for epoch in range(5)]
    [0.5, 0.5, 0.25, 0.125, 0.125]
    """
    check_positive("rate", rate)
    check_positive("factor", factor)
    reached = tuple(milestones)
    for milestone in reached:
        check_whole("Each of milestones", milestone, least=1)
    if reached != tuple(sorted(set(reached))):
        raise InputError(f"milestones is {reached}; they must be increasing.")
    return lambda epoch: rate * factor ** sum(milestone <= epoch for milestone in reached)


def exponential(rate: float, *, decay: float) -> Schedule:
    """γᵏ = rate · decayᵏ.

    >>> [exponential(0.4, decay=0.5)(epoch) for epoch in range(3)]
    [0.4, 0.2, 0.1]
    """
    check_positive("rate", rate)
    check_number("decay", decay)
    if not 0 < decay <= 1:
        raise InputError(f"decay is {decay}; it must be above 0 and at most 1.")
    return lambda epoch: rate * decay**epoch


def cosine(rate: float, *, epochs: int) -> Schedule:
    """γᵏ = rate · ½(1 + cos(kπ/epochs)), and 0 from `epochs` on.

    >>> [round(cosine(0.4, epochs=4)(epoch), 3) for epoch in (0, 2, 4)]
    [0.4, 0.2, 0.0]
    """
    check_positive("rate", rate)
    check_whole("epochs", epochs, least=1)
    return lambda epoch: rate * 0.5 * (1 + math.cos(min(epoch / epochs, 1) * math.pi))


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "step": step,
    "exponential": exponential,
    "cosine": cosine,
}


def rescale(schedule: Schedule, first: float, *, horizon: int = 1000) -> Schedule:
    """ηᵏ = η¹ · γᵏ/γ¹: the shape of the baseline `schedule` (γ), started at `first` (η¹).

    With η¹ = 1/L no later rate may exceed 1/L. A baseline that rises above its first rate within `horizon` epochs is
    therefore refused. If the schedule is defined for fewer epochs, pass their number.

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
            rate = _checked_rate(schedule(epoch), epoch)
        except NO_RATE as error:
            cure = f"If training ends before that, pass horizon={epoch}."
            raise InputError(f"The baseline has no rate for epoch {epoch}: {str(error).rstrip('.')}. {cure}") from error
        if rate > baseline_first * (1 + ROUNDING):
            raise InputError(
                f"The baseline rises above its first rate: {baseline_first:g} at epoch 0, {rate:g} at epoch {epoch}. "
                f"Remove the warm-up. If training ends before that, pass horizon={epoch}."
            )
    return lambda epoch: first * (schedule(epoch) / baseline_first)


def attach(optimizer: Optimizer, schedule: Schedule) -> "ScheduledRate":
    """Let `schedule` set the learning rate of `optimizer`; call `.step()` of the result after each epoch.

    If parameter groups have different rates, the largest follows the schedule, and the others keep their ratio to it.
    """
    _check_schedule(schedule)
    rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    if not (all(math.isfinite(rate) and rate >= 0 for rate in rates) and max(rates) > 0):
        raise InputError(f"lr of the parameter groups is {rates}; it must be finite, not negative, and not 0 for all.")
    return ScheduledRate(optimizer, schedule, leader=rates.index(max(rates)))


class ScheduledRate(LRScheduler):
    """A torch scheduler for a `Schedule`. Its state_dict has plain values only; loading it sets the rates."""

    def __init__(self, optimizer: Optimizer, schedule: Schedule, leader: int) -> None:
        self.schedule, self.leader = schedule, leader
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        return [*self.rates(self.last_epoch)]

    def rates(self, epoch: int) -> list[float]:
        """Return the rate of every parameter group at `epoch`."""
        rate = _checked_rate(self.schedule(epoch), epoch)
        return [rate * float(base / self.base_lrs[self.leader]) for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        rates = {name: [float(rate) for rate in getattr(self, name)] for name in ("base_lrs", "_last_lr")}
        return {key: value for key, value in super().state_dict().items() if key != "schedule"} | rates

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = self.optimizer.param_groups
        if len(state_dict["base_lrs"]) != len(groups):
            saved = len(state_dict["base_lrs"])
            raise InputError(f"The saved schedule has {saved} parameter groups, the optimizer has {len(groups)}.")
        super().load_state_dict(state_dict)
        for group, rate in zip(groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def scheduler_parts(scheduler: LRScheduler) -> list[LRScheduler]:
    """Return a torch scheduler and, for a SequentialLR or ChainedScheduler, all schedulers in it."""
    return [scheduler, *(part for inner in getattr(scheduler, "_schedulers", ()) for part in scheduler_parts(inner))]


def scale_base_rates(scheduler: LRScheduler, factor: float) -> None:
    """Multiply the rates in a torch scheduler: base rates, last rates, largest and smallest rates.

    The current rates of the optimizer do not change.
    """
    for part in scheduler_parts(scheduler):
        for name in ("base_lrs", "_last_lr", "max_lrs", "min_lrs"):
            if hasattr(part, name):
                setattr(part, name, [rate * factor for rate in getattr(part, name)])
        for name in ("eta_min", "min_lr"):
            if hasattr(part, name):
                setattr(part, name, getattr(part, name) * factor)


def _check_schedule(schedule: Schedule) -> None:
    if not callable(schedule):
        raise InputError(f"schedule is {schedule!r}; pass a function of the epoch, such as schedules.constant(0.1).")


def _checked_rate(rate: float, epoch: int) -> float:
    """Return the rate if it is a finite number of at least 0."""
    check_number(f"The schedule's rate at epoch {epoch}", rate)
    if not (math.isfinite(rate) and rate >= 0):
        raise InputError(f"The schedule's rate at epoch {epoch} is {rate}; it must be finite and not negative.")
    return rate
