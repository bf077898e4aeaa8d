"""Another optimizer of the same kind and options, for other parameters and at another rate."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from excite.errors import InputError

NewOptimizer = Callable[[list[nn.Parameter], float], Optimizer]

FUNCTION = (
    "(params, lr) -> torch.optim.Optimizer, for instance optimizer=lambda params, lr: torch.optim.AdamW(params, lr)"
)


def momentum_sgd(parameters: list[nn.Parameter], rate: float) -> Optimizer:
    """SGD with momentum 0.9."""
    return SGD(parameters, lr=rate, momentum=0.9)


def new_optimizer(wanted: Optimizer | NewOptimizer, parameters: Sequence[nn.Parameter], rate: float) -> Optimizer:
    """What `wanted(parameters, rate)` makes, or, where it is an optimizer, one like it with its largest rate at `rate`.

    The parameter groups of such a one keep their options and the ratios of their rates.
    """
    if isinstance(wanted, Optimizer):
        largest = max(map(_first_rate, wanted.param_groups))
        if not largest > 0:
            raise InputError(f"The largest rate of this {type(wanted).__name__} is {largest}; give it one above 0.")
        groups = [_at(group, rate / largest) for group in wanted.param_groups]
        try:
            return type(wanted)(groups, lr=rate)  # type: ignore[call-arg]
        except TypeError as error:
            name = type(wanted).__name__
            raise InputError(
                f"Another {name} cannot be made from parameter groups and a rate: {error}. Pass a function that makes "
                f"one, optimizer=lambda params, lr: {name}(params, …)."
            ) from error
    if not callable(wanted):
        raise InputError(f"optimizer is {wanted!r}; pass one of torch, or {FUNCTION}.")
    made = wanted(list(parameters), rate)
    if not isinstance(made, Optimizer):
        raise InputError(f"optimizer made a {type(made).__name__}; pass {FUNCTION}.")
    return made


def _at(group: dict[str, Any], factor: float) -> dict[str, Any]:
    """The group without what a scheduler has put there."""
    options = {key: value for key, value in group.items() if key != "initial_lr"}
    return {**options, "lr": _first_rate(group) * factor}


def _first_rate(group: dict[str, Any]) -> float:
    return float(group.get("initial_lr", group["lr"]))  # a scheduler may have begun to change it
