"""DenseNet-BC for small images: each layer gets the outputs of all earlier layers of its block as input."""

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

from excite.errors import InputError
from excite.models.resnet import he_normal

BLOCKS = 3
BOTTLENECK = 4  # the 1×1 convolution has 4·growth output channels
COMPRESSION = 2  # a transition halves the channels


class DenseLayer(nn.Module):
    """Append `growth` channels to the input: BN, ReLU, 1×1, BN, ReLU, 3×3, concatenate."""

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
    """Halve the channels and the side of the image: BN, ReLU, 1×1, average pooling."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels // COMPRESSION, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(self.conv(relu(self.bn(x), inplace=True)), 2)


class DenseNet(nn.Module):
    """A DenseNet-BC with `depth` = 6n + 4 layers; depth 40 and growth 12 have 176,122 parameters."""

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
            raise InputError(f"depth is {depth}; a DenseNet-BC has 6n + 4 layers, for example 22, 40 or 100.")
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
