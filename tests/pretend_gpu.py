"""A torch device that computes on the CPU and raises an error where CUDA would, such as for mixed devices.

Tensors of the device "pretend" hold their numbers in a tensor of the CPU, so whole trainings and attacks run and can be
compared with the CPU's. What CUDA refuses is refused: operands on both devices (but for numbers without dimensions,
and indices), generators of the other device, conversion to NumPy. With `float64=False`, so is every float64 tensor, as
on Apple's MPS. Not emulated: autocast, GPU random numbers, kernels, memory, streams and several devices.

Use it before the first backward pass of a process: there torch counts devices, once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten: Any = torch.ops.aten
DEVICE = "pretend:0"
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index)
LIBRARY = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
TO_THE_HOST = (aten._local_scalar_dense, aten.equal, aten.is_nonzero)


class PretendTensor(Tensor):
    """A tensor on the device; `numbers` holds its values."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "PretendTensor":
        tensor: PretendTensor = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=torch.device(DEVICE),
        )
        tensor.numbers = numbers
        return tensor

    def __init__(self, numbers: Tensor) -> None:
        pass

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, PretendTensor):
            raise TypeError("tensors of two devices")
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.numbers = value.numbers

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"PretendTensor({self.numbers})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(function, args, kwargs or {})


def compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the processor; its results are on the device of its operands."""
    kind, target = function.overloadpacket, kwargs.get("device")
    leaves, structure = tree_flatten((args, kwargs))
    here = [leaf for leaf in leaves if isinstance(leaf, PretendTensor)]
    on_device = bool(here) if target is None else torch.device(target).type == "pretend"
    if kind is aten.copy_:
        on_device = isinstance(args[0], PretendTensor)
    elif here and kind is not aten._to_copy:
        _refuse_mixture(function, args, leaves)
    if on_device and (generators := [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]):
        raise RuntimeError(f"{function}: expected a generator on {DEVICE}, not on {generators[0].device}")
    plain = [leaf.numbers if isinstance(leaf, PretendTensor) else leaf for leaf in leaves]
    plain_args, plain_kwargs = tree_unflatten(plain, structure)
    if on_device and target is not None:
        plain_kwargs["device"] = "cpu"
    results = function(*plain_args, **plain_kwargs)
    if kind is aten._to_copy and results is plain_args[0]:
        results = results.clone()
    if not on_device or kind in TO_THE_HOST:
        return results
    known = {id(tensor.numbers): tensor for tensor in here}  # results of operations in place are the operands

    def wrapped(value: Any) -> Any:
        return (
            (known[id(value)] if id(value) in known else PretendTensor(value)) if isinstance(value, Tensor) else value
        )

    return tree_map(wrapped, results)


def _refuse_mixture(function: Any, args: Any, operands: list[Any]) -> None:
    others = [each for each in operands if isinstance(each, Tensor) and not isinstance(each, PretendTensor)]
    if function.overloadpacket in INDEXING:
        if not isinstance(args[0], PretendTensor):
            raise RuntimeError(f"{function}: indices should be on the CPU, as the indexed tensor is")
        others = [tensor for tensor in others if not any(tensor is index for index in args[1])]
    if any(tensor.dim() > 0 for tensor in others):
        raise RuntimeError(f"{function}: expected all tensors to be on one device, but found {DEVICE} and cpu")


class _Pretending(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Also sees operations that create tensors, and those of processor tensors."""

    def __init__(self, *, float64: bool, copies: list[bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.float64, self.copies = float64, copies

    def __enter__(self) -> "_Pretending":
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) then is a copy that this mode sees
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kind, kwargs = function.overloadpacket, kwargs or {}
        if kind is aten.is_pinned:
            return getattr(args[0], "pinned", False)
        if kind is aten._pin_memory:
            pinned = args[0].clone()
            pinned.pinned = True
            return pinned
        results = compute(function, args, kwargs)
        if kind is aten._to_copy and isinstance(results, PretendTensor) and not isinstance(args[0], PretendTensor):
            self.copies.append(bool(kwargs.get("non_blocking")) and getattr(args[0], "pinned", False))
        for result in tree_flatten(results)[0]:
            if isinstance(result, PretendTensor) and result.dtype == torch.float64 and not self.float64:
                raise TypeError(f"{function}: {DEVICE} has no float64")
        return results


class _Module:
    """What torch asks of a device's module; outside `pretended_gpu` there is no such device."""

    exists = False
    is_available: Callable[[], bool] = staticmethod(lambda: _Module.exists)
    is_initialized: Callable[[], bool] = staticmethod(lambda: _Module.exists)
    device_count: Callable[[], int] = staticmethod(lambda: int(_Module.exists))
    current_device: Callable[[], int] = staticmethod(lambda: 0)
    get_amp_supported_dtype: Callable[[], list[torch.dtype]] = staticmethod(lambda: [torch.bfloat16, torch.float16])
    get_rng_state: Callable[[object], Tensor] = staticmethod(lambda _device: torch.empty(0))
    set_rng_state: Callable[[Tensor, object], None] = staticmethod(lambda _state, _device: None)
    manual_seed_all: Callable[[int], None] = staticmethod(lambda _seed: None)
    _is_in_bad_fork: Callable[[], bool] = staticmethod(lambda: False)


@cache
def _register() -> None:
    _setup_privateuseone_for_python_backend("pretend", backend_module=_Module)
    fallthrough = torch.library.fallthrough_kernel
    LIBRARY.fallback(fallthrough, "AutocastPrivateUse1")  # type: ignore[no-untyped-call]


@contextmanager
def pretended_gpu(*, float64: bool = True, copies: list[bool] | None = None) -> Iterator[torch.device]:
    """Yield the device, which exists inside. For each copy to it, `copies` gets whether the host need not wait."""
    _register()
    _Module.exists = True
    try:
        with _Pretending(float64=float64, copies=[] if copies is None else copies):
            yield torch.device(DEVICE)
    finally:
        _Module.exists = False
