"""Count how often the host would wait for a GPU: wherever a result on the device decides what the host does next."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten: Any = torch.ops.aten
READING = (aten._local_scalar_dense, aten.nonzero, aten.is_nonzero, aten.equal, aten.masked_select)
INDEXING = (aten.index, aten.index_put, aten.index_put_)
COPYING = (Tensor.cpu, Tensor.tolist, Tensor.numpy)


class Waits:
    """`count` so far."""

    count = 0


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, waits: Waits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits = waits

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kind = function.overloadpacket
        masks = kind in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
        self.waits.count += kind in READING or masks
        return function(*args, **(kwargs or {}))


class _Copies(TorchFunctionMode):
    """Copies to the host, which are no operation on a processor."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(
        self, function: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.waits.count += function in COPYING
        return function(*args, **(kwargs or {}))


@contextmanager
def waits_of_the_host() -> Iterator[Waits]:
    waits = Waits()
    with _Operations(waits), _Copies(waits):
        yield waits
