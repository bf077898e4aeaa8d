"""LeNet-5: two 5×5 convolutions with pooling, then 120-84-classes; 44,426 parameters for 28×28 digits."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from excite.errors import InputError

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}
SMALLEST_SIDE = 16


class LeNet5(nn.Module):
    """LeNet-5. `activate_logits=True` also applies the activation to the logits, as the paper's released code does.

    With ReLU this hides gradients from an attack, and a class can stop learning. Use it for comparisons only.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        input_shape: tuple[int, int, int] = (1, 28, 28),
        activation: Literal["relu", "tanh"] = "relu",
        activate_logits: bool = False,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        if min(height, width) < SMALLEST_SIDE:
            raise InputError(
                f"LeNet-5 needs images of at least {SMALLEST_SIDE}×{SMALLEST_SIDE} pixels, not {height}×{width}."
            )
        self.activation = ACTIVATIONS[activation]
        self.activate_logits = activate_logits
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * _side_after(height) * _side_after(width), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = max_pool2d(self.activation(self.conv1(images)), 2)
        x = max_pool2d(self.activation(self.conv2(x)), 2)
        x = self.activation(self.fc1(x.flatten(1)))
        x = self.activation(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return self.activation(logits) if self.activate_logits else logits


def _side_after(side: int) -> int:
    """Return the side after two rounds of a 5×5 convolution and 2×2 pooling: 28 → 4, 32 → 5."""
    return ((side - 4) // 2 - 4) // 2
