"""DenseNet-BC for small images: each layer sees all earlier ones of its block; 176,122 parameters at depth 40."""

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

from excite.errors import InputError
from excite.models.initialize import he_normal
from excite.registry import with_named_options

BLOCKS = 3
BOTTLENECK = 4  # the 1×1 convolution gives 4·growth channels to the 3×3 one
COMPRESSION = 2  # a transition halves the channels


class DenseLayer(nn.Module):
    """Adds `growth` channels to its input: BN, ReLU, 1×1, BN, ReLU, 3×3, concatenate."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, BOTTLENECK * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(BOTTLENECK * growth)
        self.conv2 = nn.Conv2d(BOTTLENECK * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv1(relu(self.bn1(x), inplace=True))
        new = self.conv2(relu(self.bn2(new), inplace=True))
        return torch.cat((x, new), 1)


class Transition(nn.Module):
    """Fewer channels and half the side: BN, ReLU, 1×1, average pooling."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels // COMPRESSION, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(self.conv(relu(self.bn(x), inplace=True)), 2)


@with_named_options
class DenseNet(nn.Module):
    """`depth` = 6n + 4 layers: a stem of 2·growth channels, 3 blocks of n layers, 2 transitions, a linear layer."""

    def __init__(
        self,
        depth: int = 40,
        growth: int = 12,
        *,
        num_classes: int = 10,
        input_shape: tuple[int, int, int] = (3, 32, 32),
    ) -> None:
        super().__init__()
        layers, rest = divmod(depth - 4, 2 * BLOCKS)
        if layers < 1 or rest:
            raise InputError(f"A DenseNet-BC has 6n + 4 layers, not {depth}; try 22, 40 or 100.")
        channels = 2 * growth
        self.conv1 = nn.Conv2d(input_shape[0], channels, 3, padding=1, bias=False)
        self.blocks = nn.Sequential()
        for block in range(BLOCKS):
            if block > 0:
                self.blocks.append(Transition(channels))
                channels //= COMPRESSION
            self.blocks.append(nn.Sequential(*(DenseLayer(channels + i * growth, growth) for i in range(layers))))
            channels += layers * growth
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, num_classes)
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.conv1(images))
        x = relu(self.bn(x), inplace=True)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits
