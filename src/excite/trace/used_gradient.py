"""The gradient that a step used: what was done to it before, and what stands in the way of comparing it with another's.

Optimizers whose steps have no gradient of their own, closures that are none, gradients that were clipped, scaled or
accumulated before the step: each with what to do about it.
"""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.optim import LBFGS, SGD, Optimizer

from excite.errors import InputError

SAME = 0.01  # relative difference that rounding and nondeterministic kernels stay well below
PARALLEL = 0.999  # cosine from which two gradients differ in length only
BOTH_ENDS = "Slopes are measured with the closure at both ends of the step instead, at one pass more each"
SINGLE_STEP = (
    "Between two calls of record() there was one step, whose gradient was taken before it and the parameters after it: "
    'a slope between two such moments is none of the loss. Use gradient="probe" with the training examples as the '
    "probe, or call record() after several steps."
)

UNFROZEN = (
    "The optimizer moves parameters that were frozen, or not its own, when the Recorder was made. It does not watch "
    "them: slopes and angles are not those of the whole step. Make a new Recorder where layers are unfrozen."
)


def trainable(model: nn.Module) -> list[Tensor]:
    """The parameters that require gradients; a model without any, or not yet any, is refused."""
    parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("No parameter of the model requires a gradient: unfreeze one with .requires_grad_().")
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise InputError("The model has lazy layers without weights: pass a batch through it first.")
    return parameters


def held_by(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those of the parameters that the optimizer's steps move."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [parameter for parameter in parameters if id(parameter) in held]


def check_optimizer(optimizer: Optimizer, parameters: Sequence[Tensor], *, watches_steps: bool) -> None:
    """Refuse an optimizer that moves another model, and one whose steps have no gradient of their own."""
    if not held_by(optimizer, parameters):
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
        f"Recorded slopes are those of the raw gradient, which {name} rescales: an L from them gives rates for SGD. "
        f"find_learning_rate and find_edge give rates for {name} itself."
    )


class UsedGradients:
    """The gradients of a step: after it, since a closure may compute them in it; before, where the step spoils them."""

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._copies: list[Tensor | None] | None = None
        self.handles = [optimizer.register_step_pre_hook(self._before)] if _spoils_gradients(optimizer) else []

    def after_step(self) -> list[Tensor | None]:
        copies, self._copies = self._copies, None
        return [parameter.grad for parameter in self._parameters] if copies is None else copies

    def _before(self, _: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any] | None:
        itself, *given = arguments
        closure = given[0] if given else options.get("closure")
        if closure is None:
            self._copy()
            return None

        def then_copy() -> Any:
            loss = closure()
            self._copy()
            return loss

        return (itself, then_copy), {name: value for name, value in options.items() if name != "closure"}

    def _copy(self) -> None:
        self._copies = [None if each.grad is None else each.grad.detach().clone() for each in self._parameters]


def _spoils_gradients(optimizer: Optimizer) -> bool:
    """Torch's foreach SGD adds Nesterov's momentum to the gradients themselves, unless weight decay made new ones."""
    return isinstance(optimizer, SGD) and any(
        group["nesterov"] and not group["weight_decay"] and (group["foreach"] or _foreach_by_default(group))
        for group in optimizer.param_groups
    )


def _foreach_by_default(group: dict[str, Any]) -> bool:
    return group["foreach"] is None and not group["fused"] and any(each.is_cuda for each in group["params"])


class BackwardPasses:
    """Notes, between two steps, how often each gradient was added to and how long it was left."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._times: Counter[int] = Counter()
        self._lengths: dict[int, Tensor] = {}
        own = weakref.ref(self)  # torch holds hooks where no garbage collector looks: one that holds us stays for good

        def note(parameter: Tensor) -> None:
            if (passes := own()) is not None:
                passes._note(parameter)

        self._handles = [
            parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for parameter in parameters
            if parameter.requires_grad
        ]

    def _note(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._times[id(parameter)] += 1
            self._lengths[id(parameter)] = parameter.grad.detach().norm()

    @property
    def times(self) -> int:
        """How many backward passes reached the same gradient."""
        return max(self._times.values(), default=0)

    @property
    def touched(self) -> bool:
        """Whether gradients are other than one backward pass left them: accumulated, clipped, scaled, or not there."""
        if self.times != 1:
            return True
        now = [parameter.grad for parameter in self._parameters if id(parameter) in self._lengths]
        then = [self._lengths[id(parameter)] for parameter in self._parameters if id(parameter) in self._lengths]
        return any(
            gradient is None or not torch.isclose(gradient.detach().norm(), length, rtol=1e-5, atol=0.0)
            for gradient, length in zip(now, then, strict=True)
        )

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


@contextmanager
def standing_at(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """The parameters have these values inside; afterwards their own, in their own memory."""
    own = [parameter.data for parameter in parameters]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value
    try:
        yield
    finally:
        for parameter, value in zip(parameters, own, strict=True):
            parameter.data = value


class Objection(NamedTuple):
    """Said once for each kind, whatever the numbers in its text are at later steps."""

    kind: str
    text: str


def objection(used: Tensor, own: Tensor, *, passes: int, early: bool) -> Objection | None:
    """What is wrong with a step that used the gradient `used` where the closure's is `own`; None if nothing is.

    Where one is not finite, training has diverged, and nobody can tell.
    """
    lengths = float(used.norm()), float(own.norm())
    if not math.isfinite(sum(lengths)) or float((used - own).norm()) <= SAME * max(lengths):
        return None
    cosine = float(torch.dot(used, own)) / (lengths[0] * lengths[1]) if min(lengths) > 0 else 0.0
    if cosine > PARALLEL:
        return Objection(
            "scaled",
            f"The step used {lengths[0] / lengths[1]:.3g} times the gradient of the closure: it was clipped or scaled. "
            f"{BOTH_ENDS}. L is that of the closure's loss, and 1/L a rate for steps that are not clipped.",
        )
    if early:
        return Objection(
            "early",
            "after_step was called before optimizer.step(), so it sees the loss of the next batch. Call it right after "
            f"the step. {BOTH_ENDS}.",
        )
    if passes > 1:
        return Objection(
            "accumulated",
            f"The step used gradients of {passes} backward passes, the closure gives one batch's. {BOTH_ENDS}. For the "
            "L of the whole step let the closure return the mean loss of all its batches.",
        )
    return Objection(
        "other",
        f"The step did not use the gradient of the closure (cosine {cosine:.2g}). Call after_step right after the step "
        f"with a closure of the same batch, loss and mode. {BOTH_ENDS}.",
    )


def check_seen(loss: Tensor, gradients: Sequence[Tensor | None]) -> None:
    """Refuse a loss of whose `gradients` some are hidden from `torch.autograd.grad`: those of reentrant checkpoints."""
    ahead = [loss.grad_fn] if any(gradient is None for gradient in gradients) else []
    seen = set()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise InputError(
                "The model checkpoints its layers with use_reentrant=True, which hides their gradients from everybody "
                "but backward(). Checkpoint with use_reentrant=False, which gives the same gradients."
            )
        seen.add(node)
        ahead.extend(before for before, _ in node.next_functions)


@contextmanager
def own_gradients(model: nn.Module, parameters: list[Tensor]) -> Iterator[None]:
    """Keep `.grad` away from the closure, and a wrapped model's processes from waiting for each other's."""
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    alone = model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()
    try:
        with alone:
            yield
    finally:
        calls_backward = any(parameter.grad is not None for parameter in parameters)
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient
        if calls_backward:
            raise InputError(
                "The closure of after_step calls backward(). Let it return the loss only: `def closure(): return "
                "loss_fn(model(x), y)`; the recorder takes the gradient itself."
            )


def loss_of(closure: Callable[[], Tensor]) -> Tensor:
    loss = closure()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(f"The closure of after_step must return the loss, one number as a tensor, not {what}.")
    if not loss.requires_grad:
        raise InputError("The loss of the closure has no gradient: do not detach it or compute it under no_grad().")
    return loss.reshape(())
