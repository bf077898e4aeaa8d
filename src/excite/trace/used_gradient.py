"""Did a step use the gradient of the loss that the recorder is handed? What was done to it, and what to do about it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

SAME = 0.01  # relative difference that rounding and nondeterministic kernels stay well below
PARALLEL = 0.999  # cosine from which two gradients differ in length only
BOTH_ENDS = "Slopes are measured with the closure at both ends of the step instead, at one pass more each"


class BackwardPasses:
    """Notes, between two steps, how often each gradient was added to and how long it was left."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._times: Counter[int] = Counter()
        self._lengths: dict[int, Tensor] = {}
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            for parameter in parameters
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
    """What is wrong with a step that used the gradient `used` where the closure's is `own`; None if nothing is."""
    lengths = float(used.norm()), float(own.norm())
    if float((used - own).norm()) <= SAME * max(lengths):
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
