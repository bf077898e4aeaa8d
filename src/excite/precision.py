"""The precision of forward passes and of products: bfloat16 or TF32 by choice, and the rounding that torch does itself.

bfloat16 is about twice as fast where the hardware has it. By default torch rounds convolutions on CUDA to TF32.
"""

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from excite.errors import InputError
from excite.registry import check_choice

Precision = Literal["float32", "tf32", "bf16"]
Kernels = Literal["default", "deterministic", "fastest"]
WITHOUT_FLOAT64 = ("mps",)  # types of devices
SPACING = {"tf32": 2.0**-10, "bf16": 2.0**-7}  # distance from 1 to the next number, by torch's name
AMPERE = (8, 0)  # compute capability of the first GPUs with TF32


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse a precision that the device does not have."""
    check_choice("precision", Precision, precision)
    if precision == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < AMPERE):
        raise InputError(
            f'precision="tf32" needs an NVIDIA GPU (Ampere or newer), not {device}; use "float32" or "bf16".'
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # some devices only warn, and compute in float32
            autocast(precision, device)
    except (RuntimeError, UserWarning) as error:
        raise InputError(f'{device} has no bfloat16; use precision="float32" ({error}).') from error


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Inside, layers compute in bfloat16 if chosen. Weights, gradients of weights and the optimizer stay in float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def rounding(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Inside, convolutions and matrix products round to TF32 if chosen, also in backward passes."""
    return _products("tf32", _switches(device)) if precision == "tf32" else nullcontext()


def full_precision(logits: Tensor) -> Tensor:
    """At least float32: under autocast, a softmax in bfloat16 would round small steps away."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def rounding_of_products(device: torch.device) -> float:
    """Relative distance of neighboring factors in convolutions and matrix products; 0 if they stay in float32."""
    return max(SPACING.get(switch.fp32_precision, 0.0) for switch in _switches(device))


def exact_products(device: torch.device) -> AbstractContextManager[None]:
    """Inside, factors stay in float32."""
    return _products("ieee", [switch for switch in _switches(device) if switch.fp32_precision in SPACING])


@contextmanager
def _products(name: str, switches: Iterable[Any]) -> Iterator[None]:
    before = [(switch, switch.fp32_precision) for switch in switches]
    try:
        for switch, _ in before:
            switch.fp32_precision = name
        yield
    finally:
        for switch, precision in before:
            switch.fp32_precision = precision


def _switches(device: torch.device) -> tuple[Any, Any]:
    """Torch's settings for convolutions and matrix products."""
    backends: Any = torch.backends  # mypy does not see all of it
    if device.type == "cuda":
        return backends.cudnn.conv, backends.cuda.matmul
    return backends.mkldnn.conv, backends.mkldnn.matmul


def widest(device: torch.device) -> torch.dtype:
    """The most precise floating-point type of a device."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def double(x: Tensor) -> Tensor:
    """In float64, on the CPU if the device has no float64."""
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).to(torch.float64)


def choose_kernels(kernels: Kernels) -> None:
    """Make this process use kernels that repeat to the bit, or the fastest of each that cuDNN measures, on GPUs.

    An operation that has no deterministic kernel then raises an error. "default" restores the settings that torch had
    before the first call.
    """
    chosen: dict[Kernels, tuple[int | str, bool]]
    chosen = {"default": _former_kernels(), "deterministic": ("error", False), "fastest": ("default", True)}
    if kernels == "deterministic":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first matrix product runs
    strictness, torch.backends.cudnn.benchmark = chosen[kernels]
    torch.set_deterministic_debug_mode(strictness)


@cache
def _former_kernels() -> tuple[int, bool]:
    return torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
