"""Describe an optimizer, for an estimate that holds for this one only."""

import inspect
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer


def is_adaptive(name: str) -> bool:
    """Whether an optimizer of this name rescales each coordinate of the gradient.

    >>> is_adaptive("AdamW (weight_decay=0.1)"), is_adaptive("SGD (momentum=0.9)")
    (True, False)
    """
    return re.search("ada|rmsprop|lion|shampoo", name.lower()) is not None


def described(optimizer: "Optimizer | str") -> str:
    """The optimizer's name and its options that differ from their defaults, without the rate.

    >>> import torch
    >>> described(torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9, nesterov=True))
    'SGD (momentum=0.9, nesterov=True)'
    """
    if isinstance(optimizer, str):
        return optimizer
    defaults = {name: known.default for name, known in inspect.signature(type(optimizer)).parameters.items()}
    chosen = {
        name: value
        for name, value in optimizer.param_groups[0].items()
        if name in defaults and name not in {"params", "lr"} and value != defaults[name]
    }
    settings = ", ".join(f"{name}={value}" for name, value in chosen.items())
    return type(optimizer).__name__ + (f" ({settings})" if settings else "")
