"""Every convolution starts as N(0, √(2/(k²·out))); batch-norm starts as 1 and 0, linear layers as torch has them."""

from typing import Literal

from torch import nn


def he_normal(network: nn.Module, *, mode: Literal["fan_out", "fan_in"] = "fan_out") -> None:
    """Draw the weights of all convolutions in `network` anew, from torch's global generator; their biases become 0.

    `fan_in` divides by k²·in instead, so that activations keep their size through a network without batch-norm.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
