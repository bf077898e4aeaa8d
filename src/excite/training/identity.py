"""What makes a training this one and no other: a saved one goes on only as what it was begun as."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from excite.data.augment import Augmentation, none
from excite.errors import InputError
from excite.objectives import Objective

UNCOMPARED = {"lr", "foreach", "fused", "capturable", "differentiable"}  # all but the first: how, not what

Identity = dict[str, Any]  # plain values by name


def identity(
    objective: Objective,
    optimizer: Optimizer,
    *,
    augment: Augmentation = none,
    recorder: bool = False,
    online: bool = False,
    **numbers: int,
) -> Identity:
    """By name what must be the same when a training goes on; `optimizer` as it is before the first step.

    The rate is left out where it is found `online`, since it changes on the way.

    >>> from torch import nn
    >>> from torch.optim import SGD
    >>> from excite.objectives import Trades
    >>> found = identity(Trades(beta=1.0), SGD(nn.Linear(2, 1).parameters(), lr=0.1), seed=25)
    >>> [found[name] for name in ("seed", "objective", "objective.beta", "optimizer", "rate")]
    [25, 'Trades', 1.0, 'SGD', 0.1]
    """
    rate = {} if online else {"rate": _of_groups("lr", optimizer.param_groups)}
    return {
        **numbers,
        **_of_objective(objective),
        **_of_function("augment", augment),
        "optimizer": type(optimizer).__name__,
        **rate,
        **options(optimizer, optimizer.param_groups),
        "recorder": recorder,
        "online": online,
    }


def options(optimizer: Optimizer, groups: Sequence[Mapping[str, Any]]) -> Identity:
    """What the parameter groups of such an optimizer are set to, but for the rate and what only makes steps fast."""
    names = getattr(optimizer, "defaults", {}).keys() - UNCOMPARED
    return {f"optimizer.{name}": _of_groups(name, groups) for name in sorted(names)}


def another_rate(taken: Sequence[float], now: Sequence[float]) -> tuple[Identity, Identity]:
    """Of the first epoch after the first that has another rate now than it was begun with, both; nothing where none is.

    >>> another_rate([0.1, 0.1, 0.1], [0.1, 0.05, 0.025])
    ({'rate of epoch 2': 0.1}, {'rate of epoch 2': 0.05})
    """
    for epoch, (before, after) in enumerate(zip(taken[1:], now[1:], strict=True), start=2):
        if not math.isclose(before, after, rel_tol=1e-6):  # a rate that is a tensor is rounded
            return {f"rate of epoch {epoch}": before}, {f"rate of epoch {epoch}": after}
    return {}, {}


def check_same(folder: Path, saved: Identity, now: Identity, *, reached: Identity) -> None:
    """Refuse to go on with the training in `folder` as another one, and name what differs.

    What one side does not know, as of an older excite, is not compared. Some optimizers count steps among their
    options: one that is used again in the same process stands where the saved one had `reached`.
    """
    different = [
        f"{name} was {saved[name]!r}, is {value!r}"
        for name, value in now.items()
        if name in saved and value not in (saved[name], reached.get(name, saved[name]))
    ]
    if different:
        raise InputError(
            f"{folder} holds another training: {'; '.join(different)}. Go on as it was begun, train in another folder, "
            f"or delete {folder} to train again from the start."
        )


def check_length(folder: Path, epochs: int, *, begun: int) -> None:
    """Refuse to end before where the training in `folder` stands: the epochs `begun` are not taken back."""
    if begun > epochs:
        raise InputError(
            f"{folder} holds a training that is in its epoch {begun} or has finished it; epochs={epochs} would be "
            f"fewer. Pass epochs={begun} or more, train in another folder, or delete {folder} to train again from the "
            "start."
        )


def _of_objective(objective: Objective) -> Identity:
    """Its name and options."""
    given: object = objective
    if is_dataclass(given):
        own = {f"objective.{option.name}": getattr(given, option.name) for option in fields(given)}
        plain = {name: _plain(value) for name, value in own.items() if value is None or isinstance(value, Real | str)}
        return {"objective": type(given).__name__, **plain}
    return _of_function("objective", given)


def _of_function(what: str, given: object) -> Identity:
    """What it is called; nothing of one that was made on the spot: its name says nothing."""
    name = getattr(given, "__qualname__", "<>")
    return {} if "<" in name else {what: name}


def _of_groups(name: str, groups: Sequence[Mapping[str, Any]]) -> Any:
    """The option's value, or one for each group where they differ."""
    values = [_plain(group.get(name)) for group in groups]
    return values[0] if all(value == values[0] for value in values) else values


def _plain(value: object) -> Any:
    """As a JSON file gives it back."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return float(value) if isinstance(value, Real) else type(value).__name__
