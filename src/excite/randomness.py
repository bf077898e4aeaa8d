"""Every random choice has an address such as (seed, epoch, step), and looking at a model leaves no sign of it."""

import contextlib
import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def derive_seed(*parts: int) -> int:
    """A hash of `parts` in [0, 2**63), the same on every machine and in every process.

    Neighbouring addresses, such as two steps of an epoch, get unrelated seeds.

    >>> derive_seed(0, 7) == derive_seed(0, 7), derive_seed(0, 7) == derive_seed(7, 0)
    (True, False)
    """
    text = ",".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of every global generator that a loss on `device` may draw from."""
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if "mps" in state:
        torch.mps.set_rng_state(state["mps"])


def seed_all(seed: int, device: torch.device) -> None:
    """Make the random parts of a loss (dropout, a random start) the same at every evaluation."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    if device.type == "mps":
        torch.mps.manual_seed(seed)


@contextlib.contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put buffers (batch-norm statistics), train/eval modes and random generators back on leaving."""
    modes = [(module, module.training) for module in model.modules()]
    buffers: list[tuple[Tensor, Tensor]] = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    state = random_state(device)
    try:
        yield
    finally:
        set_random_state(state, device)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for module, training in modes:
            module.training = training
