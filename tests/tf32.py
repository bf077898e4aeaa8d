"""TF32 on a processor: where torch's settings ask for it, factors of products have 10 mantissa bits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten: Any = torch.ops.aten
MKLDNN: Any = torch.backends.mkldnn
PRODUCTS = (aten.convolution, aten.convolution_backward, aten.mm, aten.addmm, aten.bmm, aten.baddbmm)
DROPPED = 13  # of the 23 bits of a float32's mantissa


def rounded(value: Any) -> Any:
    """To the nearest number with 10 mantissa bits; biases are not factors and stay as they are."""
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.dim() < 2:
        return value
    bits = value.view(torch.int32)
    half = (1 << DROPPED - 1) - 1 + ((bits >> DROPPED) & 1)
    return (bits + half).bitwise_and_(-1 << DROPPED).view(torch.float32)


class _Tf32(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        product: Callable[..., Any] = function
        if function.overloadpacket in PRODUCTS and MKLDNN.conv.fp32_precision == "tf32":
            args = tree_map(rounded, args)
        return product(*args, **(kwargs or {}))


@contextmanager
def tf32(*, asked: bool = True) -> Iterator[None]:
    """Processors follow the settings of mkldnn, as GPUs follow those of cudnn and cuda; set them if `asked`."""
    switches = MKLDNN.conv, MKLDNN.matmul
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "tf32" if asked else switch.fp32_precision
        with _Tf32():  # type: ignore[no-untyped-call]
            yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision
