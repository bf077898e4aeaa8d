"""Run forward passes in bfloat16: about twice as fast on processors and GPUs that have it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["float32", "bf16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Inside, layers compute in this precision. Weights, gradients of weights and the optimizer stay in float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def full_precision(logits: Tensor) -> Tensor:
    """At least float32: under autocast, a softmax in bfloat16 would round small steps away."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
