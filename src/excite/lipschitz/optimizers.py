"""What 1/L and 2/L mean for an optimizer: the largest rate at which it is stable on a quadratic."""

import inspect
import re
from typing import TYPE_CHECKING

from excite.errors import InputError

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
    """The rate below which steps on ½ λ θ² shrink θ, for torch's SGD and what is built like it.

    With v ← β v + (1 − τ) λ θ and θ ← θ − η v, the characteristic polynomial z² − (1 + β − η (1 − τ) λ) z + β has its
    roots inside the unit circle while η (1 − τ) λ < 2 (1 + β); Nesterov's step, θ ← θ − η (λ θ + β v), while
    η λ < 2 (1 + β) / (1 + 2 β). So

        SGD 2/λ,   heavy ball 2 (1 + β)/λ,   Nesterov 2 (1 + β) / ((1 + 2 β) λ).

    - Weight decay in the gradient (`weight_decay` of SGD) turns λ into λ + w. Decoupled, θ ← (1 − η w) θ − η v, it does
      the same without momentum; with it, the edge lies between those of λ + w and of λ, which agree for small w.
    - Adam averages, v ← β₁ v + (1 − β₁) g (so τ = β₁), and divides by P = √v̂ + ε: with P held fixed the edge is
      2 (1 + β₁) / (1 − β₁) · P/λ, 38 P/λ for β₁ = 0.9. P follows the gradients, which is why Adam hardly ever blows
      up: past its edge it stops improving. Use `momentum=β₁, dampening=β₁, preconditioner=P`.

    Args:
        curvature: λ, the largest one of the loss.
        preconditioner: P, what the step is divided by.

    >>> largest_stable_rate(4.0), largest_stable_rate(4.0, momentum=0.5)
    (0.5, 0.75)
    """
    if not (curvature > 0 and 0 <= momentum < 1 and 0 <= dampening < 1 and weight_decay >= 0 and preconditioner > 0):
        raise InputError(
            "Curvature and preconditioner must be positive, momentum and dampening in [0, 1), weight decay at least 0."
        )
    if nesterov and dampening:
        raise InputError("Nesterov's momentum takes no dampening; leave it out.")
    edge = 2 * (1 + momentum) / (1 + 2 * momentum if nesterov else 1 - dampening)
    return edge * preconditioner / (curvature + weight_decay)


def is_adaptive(name: str) -> bool:
    """Whether an optimizer of this name rescales each coordinate of the gradient.

    >>> is_adaptive("AdamW (weight_decay=0.1)"), is_adaptive("SGD (momentum=0.9)")
    (True, False)
    """
    return re.search("ada|rmsprop|lion|shampoo", name.lower()) is not None


def described(optimizer: "Optimizer | str") -> str:
    """Its name and what was set on it, the rate left out.

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
