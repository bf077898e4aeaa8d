"""Parts that several networks share: input normalization as a layer, and the initial weights of convolutions."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from excite.errors import InputError


class Normalize(nn.Module):
    """Compute (x − mean) / std per channel. As the first layer of a model, it keeps inputs and an attack's ε in [0, 1].

    Mean and std are part of the state_dict and are not trained.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        mean, std = ([values] if isinstance(values, int | float) else values for values in (mean, std))
        if len(mean) != len(std):
            raise InputError(f"There are {len(mean)} means but {len(std)} stds; give one of each per channel.")
        if not all(math.isfinite(value) for value in (*mean, *std)) or min(std) <= 0:
            raise InputError(f"mean={mean} must be finite, and std={std} must be finite and above 0.")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def he_normal(network: nn.Module, *, mode: Literal["fan_out", "fan_in"] = "fan_out") -> None:
    """Draw the weights of all convolutions from N(0, √(2/(k²·out))), with torch's global generator; biases are 0.

    `fan_in` divides by k²·in instead, which preserves the size of activations in a network without batch norm.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
