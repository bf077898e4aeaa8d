"""The precision of forward passes and of products: bfloat16 by choice, and the rounding of float32 that torch does.

bfloat16 is about twice as fast where the hardware has it. By default torch rounds convolutions on CUDA to TF32.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

Precision = Literal["float32", "bf16"]
Kernels = Literal["default", "deterministic", "fastest"]
SPACING = {"tf32": 2.0**-10, "bf16": 2.0**-7}  # distance from 1 to the next number, by torch's name


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Inside, layers compute in this precision. Weights, gradients of weights and the optimizer stay in float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def full_precision(logits: Tensor) -> Tensor:
    """At least float32: under autocast, a softmax in bfloat16 would round small steps away."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def rounding_of_products(device: torch.device) -> float:
    """Relative distance of neighboring factors in convolutions and matrix products; 0 if they stay in float32."""
    return max(SPACING.get(switch.fp32_precision, 0.0) for switch in _switches(device))


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Inside, factors stay in float32."""
    rounding = [(switch, switch.fp32_precision) for switch in _switches(device) if switch.fp32_precision in SPACING]
    try:
        for switch, _ in rounding:
            switch.fp32_precision = "ieee"
        yield
    finally:
        for switch, precision in rounding:
            switch.fp32_precision = precision


def _switches(device: torch.device) -> tuple[Any, Any]:
    """Torch's settings for convolutions and matrix products."""
    backends: Any = torch.backends  # mypy does not see all of it
    if device.type == "cuda":
        return backends.cudnn.conv, backends.cuda.matmul
    return backends.mkldnn.conv, backends.mkldnn.matmul


def choose_kernels(kernels: Kernels) -> None:
    """Make this process use kernels that repeat to the bit, or the fastest of each that cuDNN measures, on GPUs.

    An operation that has no deterministic kernel then raises an error. "default" leaves torch's settings as they are.
    """
    if kernels == "default":
        return
    deterministic = kernels == "deterministic"
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first matrix product runs
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic
