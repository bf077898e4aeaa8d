"""Which optimizers can be watched, and for which of them 1/L is a rate at all."""

from collections.abc import Sequence

from torch import Tensor
from torch.optim import LBFGS, SGD, Optimizer

from excite.errors import InputError


def check_optimizer(optimizer: Optimizer, parameters: Sequence[Tensor], *, watches_steps: bool) -> None:
    """Refuse an optimizer that moves another model, and one whose steps have no gradient of their own."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held.isdisjoint(map(id, parameters)):
        raise InputError(
            "The optimizer holds none of this model's parameters, so its steps do not move it. Make it from "
            "model.parameters() of the same model, after copying it or moving it to its device."
        )
    if watches_steps and isinstance(optimizer, LBFGS):
        raise InputError(
            "LBFGS tries several points in one step, so no gradient belongs to the step. Record with "
            'gradient="probe" and slopes_per_epoch=0, or train with SGD.'
        )


def caveat(optimizer: Optimizer) -> str | None:
    """What to know about 1/L under this optimizer; None for SGD, with or without momentum."""
    if isinstance(optimizer, SGD):
        return None
    name = type(optimizer).__name__
    return (
        f"L is that of the raw gradient and 1/L a rate for steps along it; {name} rescales the gradient, so 1/L is no "
        f"rate for {name}. Train with SGD at 1/L, or look for {name}'s own edge with find_edge."
    )
