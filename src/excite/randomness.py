"""Derive generators from addresses such as (seed, epoch, step), and restore random state, buffers and modes."""

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b, sha256
from itertools import chain, count
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from excite.errors import InputError

T = TypeVar("T")


def derive_seed(*parts: int) -> int:
    """Hash `parts` to a seed in [0, 2**63), the same on every machine and in every process.

    Neighboring addresses, such as two steps of an epoch, get unrelated seeds.

    >>> derive_seed(0, 7) == derive_seed(0, 7), derive_seed(0, 7) == derive_seed(7, 0)
    (True, False)
    """
    text = ",".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*address: int) -> torch.Generator:
    """Return a CPU generator that depends on the address alone."""
    return torch.Generator().manual_seed(derive_seed(*address))


def seeded(*words: object) -> torch.Generator:
    """Return a generator that depends on the words alone, in every process.

    It uses another hash than `derive_seed`. A single hash would change either stored evaluations, which use this one,
    or the order of images and initial weights, which use the other.
    """
    digest = sha256(repr(words).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def step_generators(seed: int, epoch: int, *, start: int = 0, rank: int = 0) -> Iterator[torch.Generator]:
    """Yield a generator for each step of an epoch from `start` on; each process (`rank`) has its own."""
    return (generator(seed, epoch, step, rank) for step in count(start))


def device_of(model: nn.Module, x: Tensor | None = None) -> torch.device:
    """Return the device of the model's first parameter or buffer; without any, that of `x` or the CPU."""
    default = torch.device("cpu") if x is None else x.device
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), default)


def accelerator() -> torch.device:
    """Return the default accelerator, or the CPU if there is none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device or torch.device("cpu")


def device_names() -> list[str]:
    """Return the processor and the accelerators of this machine, GPUs by their product names."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def usable_device(name: str | torch.device | None) -> torch.device:
    """Return the device of this name, or by default an accelerator if there is one."""
    if name is None:
        return accelerator()
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f'Cannot use the device "{name}" ({reason}). Leave it out (--device), or pass cpu.') from error
    return torch.device(name)


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every global generator that a loss on `device` may use."""
    state: dict[str, Any] = {
        "cpu": torch.get_rng_state(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore what `random_state` returned; generators that are not in `state` are left alone."""
    setters: dict[str, Callable[[Any], None]] = {
        "cpu": torch.set_rng_state,
        "numpy": lambda value: np.random.set_state(tuple(value)),  # noqa: NPY002
        "python": lambda value: random.setstate((value[0], tuple(value[1]), value[2])),
    }
    if device.type == "cuda":
        setters["cuda"] = lambda value: torch.cuda.set_rng_state(value, device)
    if device.type == "mps":
        setters["mps"] = torch.mps.set_rng_state
    for name in setters.keys() & state.keys():
        setters[name](state[name])


def state_tensors(device: torch.device) -> dict[str, Tensor]:
    """Return `random_state` as tensors, for a checkpoint; states of numpy and Python become JSON."""
    state = random_state(device)
    for name in ("numpy", "python"):
        text = json.dumps(state[name], default=np.ndarray.tolist)
        state[name] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return state


def restore_tensors(tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore what `state_tensors` returned, or the part of it that a checkpoint of another device has."""
    state = {name: tensor.cpu() for name, tensor in tensors.items()}
    texts = {name: json.loads(state[name].numpy().tobytes()) for name in ("numpy", "python") if name in state}
    set_random_state(state | texts, device)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed all global generators, so that dropout and random starts are the same at every evaluation."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    if device.type == "mps":
        torch.mps.manual_seed(seed)


@contextlib.contextmanager
def _random_state_restored(device: torch.device) -> Iterator[None]:
    before = random_state(device)
    try:
        yield
    finally:
        set_random_state(before, device)


@contextlib.contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators inside the block and restore them afterwards."""
    with _random_state_restored(device):
        seed_all(seed, device)
        yield


def drawn_from(seed: int, device: torch.device, items: Iterator[T]) -> Iterator[T]:
    """Iterate over `items` with global random state of their own; the caller's random state is unaffected."""
    with drawing_from(seed, device):
        state = random_state(device)
    while True:
        with _random_state_restored(device):
            set_random_state(state, device)
            try:
                item = next(items)
            except StopIteration:
                return
            state = random_state(device)
        yield item


Buffers = list[tuple[nn.Module, str, Tensor, Tensor]]  # module, name, buffer, copy of its value


def kept_buffers(model: nn.Module) -> Buffers:
    """Copy all buffers for `put_back`, which works whether a forward pass changes or replaces them."""
    return [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]


@torch.no_grad()
def put_back(buffers: Buffers) -> None:
    for module, name, buffer, value in buffers:
        buffer.copy_(value)
        if module._buffers[name] is not buffer:
            module._buffers[name] = buffer


@contextlib.contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore buffers (batch-norm statistics), train/eval modes and random state after the block."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = kept_buffers(model)
    try:
        with _random_state_restored(device):
            yield
    finally:
        put_back(buffers)
        for module, training in modes:
            module.training = training
