"""How many forward passes of one image through a network this machine makes in a second, in training."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite import models
from excite.objectives.protocol import TRAINING_PASSES

LONG_ENOUGH = 0.05  # seconds: a shorter step says little
LARGEST_BATCH = 256
TOO_LARGE = 10**9  # FLOP of a forward pass; above, a step takes seconds on a CPU and tells no more than FLOPs do


@dataclass(frozen=True)
class Network:
    """With ten classes; how many there are hardly counts."""

    name: str
    input_shape: tuple[int, int, int] = (3, 32, 32)
    options: tuple[tuple[str, Any], ...] = ()

    def create(self) -> nn.Module:
        return models.create(self.name, input_shape=self.input_shape, **dict(self.options))

    def flops(self) -> int:
        """Of one image's forward pass, in its convolutions and linear layers."""
        layers = 0

        def count(layer: nn.Module, _: object, outputs: Tensor) -> None:
            nonlocal layers
            layers += 2 * outputs.numel() * layer.get_parameter("weight")[0].numel()

        model = self.create().eval()
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(count)
        with torch.no_grad():
            model(torch.zeros(1, *self.input_shape))
        return layers


STAND_IN = Network("wrn-16-4")  # just not too large


def passes_per_second(networks: Iterable[Network], device: torch.device) -> dict[Network, float]:
    """Measured by steps of the network itself; for one that is too large by the stand-in's, in proportion to FLOPs.

    Takes a fraction of a second per network.
    """
    with torch.random.fork_rng():
        flops = {network: network.flops() for network in networks}
        small = [network for network in flops if flops[network] <= TOO_LARGE]
        speeds = {network: TRAINING_PASSES * _images_per_second(network, device) for network in small}
        if len(small) < len(flops):
            reference = speeds.get(STAND_IN) or TRAINING_PASSES * _images_per_second(STAND_IN, device)
            flops_per_second = reference * STAND_IN.flops()
    return {network: speeds.get(network) or flops_per_second / flops[network] for network in flops}


def _images_per_second(network: Network, device: torch.device) -> float:
    """Training steps on batches four times as large as the last, until one takes long enough to be measured."""
    model = network.create().to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    size = 4
    while True:
        images = torch.rand(size, *network.input_shape, device=device).contiguous(memory_format=torch.channels_last)
        labels = torch.zeros(size, dtype=torch.int64, device=device)
        seconds = min(_step_seconds(model, images, labels) for _ in range(2))
        if seconds >= LONG_ENOUGH or size >= LARGEST_BATCH:
            return size / seconds
        size *= 4


def _step_seconds(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    weights = next(model.parameters())
    started = time.perf_counter()
    torch.autograd.backward(cross_entropy(model(images), labels))
    torch.linalg.vector_norm(weights.grad).item()  # waits for an accelerator
    return time.perf_counter() - started
