"""Networks by name, for example `create("resnet20", num_classes=100)`; they map images in [0, 1] to logits.

To add one, add a file with its class, a line in `MODELS`, and a row in tests/models/test_models.py. Keyword-only
arguments of the class other than `num_classes` and `input_shape` are options of the model.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.models import resnet
from excite.models.densenet import DenseNet
from excite.models.lenet import LeNet5
from excite.models.own import build_own
from excite.models.resnet import ResNet, WideResNet
from excite.quantities import check_whole
from excite.registry import build

__all__ = ["MODELS", "DenseNet", "LeNet5", "Normalize", "ResNet", "WideResNet", "create"]

Statistics = tuple[float | Sequence[float], float | Sequence[float]]  # mean and standard deviation, of each channel

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "resnet8": partial(ResNet, resnet.cifar(8)),
    "resnet20": partial(ResNet, resnet.cifar(20)),
    "resnet50": partial(ResNet, resnet.cifar(50)),
    "resnet110": partial(ResNet, resnet.cifar(110)),
    "resnet18": partial(ResNet, resnet.RESNET18),
    "resnet50-bottleneck": partial(ResNet, resnet.RESNET50_BOTTLENECK),
    "densenet40": partial(DenseNet, 40, 12),
    "wrn-16-4": partial(WideResNet, 16, 4),
    "wrn-28-10": partial(WideResNet, 28, 10),
    "wrn-34-10": partial(WideResNet, 34, 10),
}


class Normalize(nn.Module):
    """Compute (x − mean) / std per channel. As the first layer of a model, it keeps inputs and an attack's ε in [0, 1].

    Mean and std are part of the state_dict and are not trained.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        mean, std = ([values] if isinstance(values, int | float) else values for values in (mean, std))
        if len(mean) != len(std) or not all(0 < value < math.inf for value in std):
            raise InputError(f"mean={mean}, std={std}; give one of each per channel, and a std above 0.")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def create(
    name: str,
    *,
    num_classes: int = 10,
    input_shape: tuple[int, int, int] = (3, 32, 32),
    normalize: Statistics | None = None,
    **options: Any,
) -> nn.Module:
    """Build a network; its initial weights are drawn from torch's global generator.

    Args:
        name: a key of `MODELS`, or `package.module:factory` for your own network.
        num_classes: the number of logits.
        input_shape: channels, height and width of one image.
        normalize: (mean, std), each with one number per channel; they become the first layer.
        options: options of the model, such as `activation="tanh"` of `lenet5` or `batch_norm=False` of the ResNets.

    Returns:
        The network, in train mode, on the CPU.

    >>> sum(parameter.numel() for parameter in create("lenet5", input_shape=(1, 28, 28)).parameters())
    44426
    """
    check_whole("num_classes", num_classes, least=1)
    if len(input_shape) != 3 or not all(isinstance(side, int) and side > 0 for side in input_shape):
        raise InputError(f"input_shape is {input_shape}; give channels, height and width, such as (3, 32, 32).")
    if normalize is not None and (channels := len(Normalize(*normalize).mean)) != input_shape[0]:
        raise InputError(f"normalize has {channels} channels, but the images have {input_shape[0]}.")
    if ":" in str(name):
        network = build_own(name, options, num_classes=num_classes, input_shape=input_shape)
    else:
        network = build("model", MODELS, name, options, num_classes=num_classes, input_shape=input_shape)
    return normalized(network, normalize)


def normalized(network: nn.Module, normalize: Statistics | None) -> nn.Module:
    """Return the network with a first layer that normalizes by (mean, std); without them, the network itself."""
    if normalize is None:
        return network
    return nn.Sequential(OrderedDict(normalize=Normalize(*normalize), network=network))
