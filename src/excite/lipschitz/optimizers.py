"""What 1/L and 2/L mean for an optimizer: the largest rate at which it is stable on a quadratic."""

import inspect
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer


def largest_stable_rate(
    curvature: float,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    preconditioner: float = 1.0,
) -> float:
    """The largest rate at which torch's SGD is stable on ½ λ θ², where λ is the `curvature`.

    With v ← β v + (1 − τ) λ θ and θ ← θ − η v, the characteristic polynomial z² − (1 + β − η (1 − τ) λ) z + β has its
    roots inside the unit circle while η (1 − τ) λ < 2 (1 + β); Nesterov's step, θ ← θ − η (λ θ + β v), while
    η λ < 2 (1 + β) / (1 + 2 β). Weight decay w replaces λ by λ + w. For Adam with a fixed preconditioner P = √v̂ + ε,
    pass `momentum=β₁, dampening=β₁, preconditioner=P`: the edge is 2 (1 + β₁) / (1 − β₁) · P/λ.

    >>> largest_stable_rate(4.0), largest_stable_rate(4.0, momentum=0.5)
    (0.5, 0.75)
    """
    edge = 2 * (1 + momentum) / (1 + 2 * momentum if nesterov else 1 - dampening)
    return edge * preconditioner / (curvature + weight_decay)


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
