"""Ways to misuse the recorder, and the cure for each: a table of refusals and a table of warnings.

A refusal raises an InputError. A warning is logged once per kind, and stays in `recorder.problems` and in the trace.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import LBFGS, Optimizer

from excite.errors import InputError

REFUSALS = {
    "nothing to train": "No parameter of the model requires a gradient. Unfreeze one with .requires_grad_().",
    "lazy layers": "The model has lazy layers without weights. Pass a batch through it first.",
    "probe": "A probe is (x, y): a tensor of examples and a tensor of their targets.",
    "no probe": "Probe gradients, input gradients and curvatures need examples. Pass probe=(x, y).",
    "no optimizer": 'Epoch means are computed from optimizer steps. Pass the optimizer, or use gradient="probe".',
    "another model's optimizer": (
        "The optimizer holds none of this model's parameters. Create it from model.parameters() of the same model, "
        "after copying the model or moving it to its device."
    ),
    "LBFGS": (
        "LBFGS evaluates several points per step, so no single gradient belongs to a step. Record with "
        'gradient="probe" and slopes_per_epoch=0, or train with SGD.'
    ),
    "no step": (
        "There was no optimizer step since the last call of record(). Call record() after an epoch of steps of the "
        'optimizer that the Recorder was given, or use gradient="probe".'
    ),
    "other settings": (
        "The saved trace was recorded with {saved}, but this recorder has {now}. Use the same settings, or delete the "
        "run to start again."
    ),
    "another process": "Another process keeps the trace of this training. Use the Recorder of rank 0.",
    "closure calls backward": (
        "The closure passed to after_step calls backward(). It must only return the loss: `def closure(): return "
        "loss_fn(model(x), y)`. The recorder computes the gradient."
    ),
    "closure returns no loss": "The closure passed to after_step must return the loss, a scalar tensor; got {got}.",
    "detached loss": "The closure's loss has no gradient. Do not detach it or compute it under no_grad().",
    "reentrant checkpoint": (
        "The model uses activation checkpointing with use_reentrant=True, which hides gradients from everything but "
        "backward(). Use use_reentrant=False; the gradients are the same."
    ),
}

_BOTH_ENDS = "Slopes now use the closure's gradient before and after the step, at the cost of one more pass each."

WARNINGS = {
    "optimizer": (
        "Recorded slopes are slopes of the raw gradient, which {name} rescales, so an L from them gives rates for SGD. "
        "Use find_learning_rate or find_edge for rates for {name}."
    ),
    "single steps": (
        "There was only one step between two calls of record(). Its gradient was computed before the step and the "
        "parameters after it, so slopes between such moments are wrong. Call record() after several steps, or use "
        'gradient="probe" with the training examples as the probe.'
    ),
    "unfrozen": (
        "The optimizer now moves parameters that were frozen, or not in the optimizer, when the Recorder was created. "
        "They are not recorded, so slopes and angles do not cover the whole step. Create a new Recorder after "
        "unfreezing layers."
    ),
    "scaled": (
        "The step used {ratio:.3g} times the closure's gradient: the gradient was clipped or scaled. L describes the "
        f"closure's loss, and 1/L is a rate for steps that are not clipped. {_BOTH_ENDS}"
    ),
    "early": (
        "after_step was called before optimizer.step(), so it sees the loss of the next batch. Call it right after the "
        f"step. {_BOTH_ENDS}"
    ),
    "accumulated": (
        "The step used the gradients of {passes} backward passes, but the closure computes the loss of one batch. For "
        f"the L of the whole step, let the closure return the mean loss of all its batches. {_BOTH_ENDS}"
    ),
    "other": (
        "The step did not use the closure's gradient (cosine {cosine:.2g}). Call after_step right after the step, with "
        f"a closure for the same batch, loss and mode. {_BOTH_ENDS}"
    ),
}

SAME = 0.01  # relative difference between two gradients; rounding and nondeterministic kernels stay well below
PARALLEL = 0.999  # cosine above which two gradients differ only in length


def refuse(kind: str, **values: object) -> NoReturn:
    raise InputError(REFUSALS[kind].format(**values))


def trainable(model: nn.Module) -> list[Tensor]:
    """The parameters that require gradients; there must be at least one, and all must be initialized."""
    parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        refuse("nothing to train")
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        refuse("lazy layers")
    return parameters


def held_by(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those of the parameters that the optimizer updates."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [parameter for parameter in parameters if id(parameter) in held]


def check_optimizer(optimizer: Optimizer, parameters: Sequence[Tensor], *, watches_steps: bool) -> None:
    """Refuse another model's optimizer, and LBFGS if single steps are to be watched."""
    if not held_by(optimizer, parameters):
        refuse("another model's optimizer")
    if watches_steps and isinstance(optimizer, LBFGS):
        refuse("LBFGS")


def diagnose(used: Tensor, expected: Tensor, *, passes: int, early: bool) -> tuple[str, dict[str, Any]] | None:
    """The warning for a step that used the gradient `used` although the closure's is `expected`; None if they agree.

    Non-finite gradients mean that training has diverged; they get no warning.
    """
    length, expected_length = float(used.norm()), float(expected.norm())
    longest = max(length, expected_length)
    if not math.isfinite(length + expected_length) or float((used - expected).norm()) <= SAME * longest:
        return None
    product = length * expected_length
    cosine = float(torch.dot(used, expected)) / product if product > 0 else 0.0
    if cosine > PARALLEL:
        return "scaled", {"ratio": length / expected_length}
    if early:
        return "early", {}
    return ("accumulated", {"passes": passes}) if passes > 1 else ("other", {"cosine": cosine})


def check_visible(loss: Tensor, gradients: Sequence[Tensor | None]) -> None:
    """Refuse a loss whose gradients `torch.autograd.grad` cannot see because of reentrant checkpoints."""
    pending = [loss.grad_fn] if any(gradient is None for gradient in gradients) else []
    seen = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            refuse("reentrant checkpoint")
        seen.add(node)
        pending.extend(parent for parent, _ in node.next_functions)


def scalar_loss(closure: Callable[[], Tensor]) -> Tensor:
    """The loss that the closure returns, checked."""
    loss = closure()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        refuse("closure returns no loss", got=got)
    if not loss.requires_grad:
        refuse("detached loss")
    return loss.reshape(())
