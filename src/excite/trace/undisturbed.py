"""Evaluate a model in the middle of its training and leave no sign of it."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


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
