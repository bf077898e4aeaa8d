"""How many forward passes of one image through a network this machine makes in a second, in training."""

import functools
import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from excite import models
from excite.objectives.protocol import TRAINING_PASSES
from excite.randomness import drawing_from

LONG_ENOUGH = 0.05  # seconds: a shorter step says little
LARGEST_BATCH = 256


@dataclass(frozen=True)
class Network:
    """With ten classes; how many there are hardly counts."""

    name: str
    input_shape: tuple[int, int, int] = (3, 32, 32)
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        options = "".join(f" {key}={value!r}" for key, value in self.options)
        return f"{self.name} {'x'.join(map(str, self.input_shape))}{options}"

    def create(self) -> nn.Module:
        return models.create(self.name, input_shape=self.input_shape, **dict(self.options))

    def flops(self) -> int:
        """Of one image's forward pass: as counted before, where the name still means the network that was counted."""
        kept = _counted().get(str(self))
        return kept["flops"] if kept and kept["factory"] == self.factory else self.count_flops()

    @property
    def factory(self) -> str:
        return repr(models.MODELS.get(self.name))

    def count_flops(self) -> int:
        """By torch, which imports its compiler for it and so takes seconds; nothing is computed."""
        with torch.device("meta"), torch.no_grad():
            model, image = self.create().eval(), torch.zeros(1, *self.input_shape)
            with FlopCounterMode(display=False) as counter:
                model(image)
        return int(counter.get_total_flops())


@functools.cache
def _counted() -> dict[str, Any]:
    """What tools/count_flops.py wrote, by the network; a test holds it against the counter."""
    counts: dict[str, Any] = json.loads(resources.files(__package__).joinpath("flops.json").read_text())
    return counts


MEASURED = (Network("lenet5", (1, 28, 28)), Network("resnet8"))  # one that waits for memory, one that computes


def passes_per_second(networks: Iterable[Network], device: torch.device) -> dict[Network, float]:
    """Two networks are trained for a moment; any other takes its FLOPs at the speed of the one nearest in size."""
    flops = {network: network.flops() for network in {*networks, *MEASURED}}
    with drawing_from(0, device):
        speeds = {one: TRAINING_PASSES * flops[one] * _images_per_second(one, device) for one in MEASURED}

    def nearest(network: Network) -> Network:
        return min(MEASURED, key=lambda measured: abs(math.log(flops[measured] / flops[network])))

    return {network: speeds[nearest(network)] / flops[network] for network in flops}


def _images_per_second(network: Network, device: torch.device) -> float:
    """Training steps on batches four times as large as the last, until one takes long enough to be measured."""
    model = network.create().to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    size, seconds = 4, 0.0
    while seconds < LONG_ENOUGH and size < LARGEST_BATCH:
        size *= 4
        images = torch.rand(size, *network.input_shape, device=device).contiguous(memory_format=torch.channels_last)
        seconds = min(_step_seconds(model, images) for _ in range(2))
    return size / seconds


def _step_seconds(model: nn.Module, images: torch.Tensor) -> float:
    labels, started = torch.zeros(len(images), dtype=torch.int64, device=images.device), time.perf_counter()
    torch.autograd.backward(cross_entropy(model(images), labels))
    torch.linalg.vector_norm(next(model.parameters()).grad).item()  # waits for an accelerator
    return time.perf_counter() - started
