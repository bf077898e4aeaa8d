"""Normalisation is a layer of the model, so that inputs, and an attack's ε, stay in [0, 1]."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.registry import with_named_options


@with_named_options
class Normalize(nn.Module):
    """(x − mean) / std for every channel; both are part of the state_dict, neither is trained."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        mean, std = ([one] if isinstance(one, int | float) else one for one in (mean, std))  # of one channel
        if len(mean) != len(std):
            raise InputError(f"There are {len(mean)} means and {len(std)} deviations; give one of each per channel.")
        if not all(math.isfinite(value) for value in (*mean, *std)) or min(std) <= 0:
            raise InputError(f"mean={mean} must be finite and std={std} finite and above 0; give the data's own.")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std
