"""ResNets for small images; a layout is the type of block, the widths and the depths. Wide ResNets are below.

`cifar(depth)` is the narrow family of He et al.'s CIFAR experiments (6n + 2 layers, widths 16/32/64).
`RESNET18` and `RESNET50_BOTTLENECK` have the ImageNet widths (64 to 512) and a 3×3 stem that keeps 32×32 pixels.
Without batch norm, convolutions have biases and fan-in initialization, and residual branches are scaled down by
√(number of blocks), so that activations neither grow nor vanish with depth.

The ReLUs work in place: nothing they overwrite is needed for a first or second derivative.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from excite.errors import InputError

CIFAR_WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, *, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv_and_norm(channels, width, 3, stride=stride, batch_norm=batch_norm)
        self.conv2, self.bn2 = _conv_and_norm(width, width, 3, batch_norm=batch_norm)
        self.shortcut = _shortcut(channels, width, stride=stride, batch_norm=batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        branch = relu(self.bn1(self.conv1(x)), inplace=True)
        branch = self.bn2(self.conv2(branch))
        return relu(branch.add_(self.shortcut(x)), inplace=True)


class Bottleneck(nn.Module):
    """A 1×1, a 3×3 and a 1×1 convolution with four times the width, and a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, *, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv_and_norm(channels, width, 1, batch_norm=batch_norm)
        self.conv2, self.bn2 = _conv_and_norm(width, width, 3, stride=stride, batch_norm=batch_norm)
        self.conv3, self.bn3 = _conv_and_norm(width, width * self.expansion, 1, batch_norm=batch_norm)
        self.shortcut = _shortcut(channels, width * self.expansion, stride=stride, batch_norm=batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        branch = relu(self.bn1(self.conv1(x)), inplace=True)
        branch = relu(self.bn2(self.conv2(branch)), inplace=True)
        branch = self.bn3(self.conv3(branch))
        return relu(branch.add_(self.shortcut(x)), inplace=True)


Layout = tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...], tuple[int, ...]]  # block, widths, depths


def cifar(depth: int) -> Layout:
    """6n + 2 layers: n BasicBlocks at each of the widths 16, 32, 64.

    >>> cifar(20)[2]
    (3, 3, 3)
    """
    n, rest = divmod(depth - 2, 6)
    if n < 1 or rest:
        raise InputError(f"depth is {depth}; a CIFAR ResNet has 6n + 2 layers, for example 8, 20, 50 or 110.")
    return BasicBlock, CIFAR_WIDTHS, (n, n, n)


RESNET18: Layout = (BasicBlock, (64, 128, 256, 512), (2, 2, 2, 2))
RESNET50_BOTTLENECK: Layout = (Bottleneck, (64, 128, 256, 512), (3, 4, 6, 3))


class ResNet(nn.Module):
    """A 3×3 stem, stages of `depths[i]` blocks of width `widths[i]`, global average pooling, one linear layer.

    Every stage but the first halves the side of the image.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        num_classes: int = 10,
        input_shape: tuple[int, int, int] = (3, 32, 32),
        batch_norm: bool = True,
    ) -> None:
        super().__init__()
        block, widths, depths = layout
        self.conv1, self.bn1 = _conv_and_norm(input_shape[0], widths[0], 3, batch_norm=batch_norm)
        self.stages = _stages(partial(block, batch_norm=batch_norm), widths[0], widths, depths, block.expansion)
        self.fc = nn.Linear(widths[-1] * block.expansion, num_classes)
        he_normal(self, mode="fan_out" if batch_norm else "fan_in")
        if not batch_norm:
            for module in self.modules():
                if isinstance(module, block):
                    last_conv = module.conv3 if isinstance(module, Bottleneck) else module.conv2
                    last_conv.weight.data.mul_(sum(depths) ** -0.5)

    def forward(self, images: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(images)), inplace=True)
        x = self.stages(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class WideBlock(nn.Module):
    """BN, ReLU, 3×3, BN, ReLU, 3×3, and a shortcut; a 1×1 shortcut also starts after the first ReLU."""

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = _conv(channels, width, 3, stride=stride, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, bias=False)
        same = stride == 1 and channels == width
        self.shortcut = None if same else _conv(channels, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = relu(self.bn1(x), inplace=True)
        branch = relu(self.bn2(self.conv1(active)), inplace=True)
        total: Tensor = self.conv2(branch).add_(x if self.shortcut is None else self.shortcut(active))
        return total


class WideResNet(nn.Module):
    """WRN-depth-factor, a pre-activation ResNet without dropout.

    It has `depth` = 6n + 4 layers: a stem, n blocks at each of the widths 16, 32, 64 times `factor`, a linear layer.
    """

    def __init__(
        self,
        depth: int,
        factor: int,
        *,
        num_classes: int = 10,
        input_shape: tuple[int, int, int] = (3, 32, 32),
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if blocks < 1 or rest:
            raise InputError(f"depth is {depth}; a wide ResNet has 6n + 4 layers, for example 16, 28, 34 or 40.")
        widths = tuple(width * factor for width in CIFAR_WIDTHS)
        self.conv1 = _conv(input_shape[0], CIFAR_WIDTHS[0], 3, bias=False)
        self.stages = _stages(WideBlock, CIFAR_WIDTHS[0], widths, (blocks,) * len(widths))
        self.bn = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], num_classes)
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stages(self.conv1(images))
        x = relu(self.bn(x), inplace=True)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def he_normal(network: nn.Module, *, mode: Literal["fan_out", "fan_in"] = "fan_out") -> None:
    """Draw the weights of all convolutions from N(0, √(2/(k²·out))), with torch's global generator; biases are 0.

    `fan_in` divides by k²·in instead, which preserves the size of activations in a network without batch norm.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _stages(
    block: Callable[..., nn.Module], channels: int, widths: Sequence[int], depths: Sequence[int], expansion: int = 1
) -> nn.Sequential:
    """Return stages of `depths[i]` blocks of width `widths[i]`; all stages but the first start with stride 2."""
    stages = nn.Sequential()
    for number, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        stage = nn.Sequential()
        for position in range(depth):
            stage.append(block(channels, width, stride=2 if number > 0 and position == 0 else 1))
            channels = width * expansion
        stages.append(stage)
    return stages


def _conv(channels: int, width: int, kernel: int, *, stride: int = 1, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=bias)


def _conv_and_norm(
    channels: int, width: int, kernel: int, *, stride: int = 1, batch_norm: bool
) -> tuple[nn.Conv2d, nn.Module]:
    conv = _conv(channels, width, kernel, stride=stride, bias=not batch_norm)
    return conv, nn.BatchNorm2d(width) if batch_norm else nn.Identity()


def _shortcut(channels: int, width: int, *, stride: int, batch_norm: bool) -> nn.Module:
    """Return the identity, or a 1×1 convolution if the shape changes."""
    if stride == 1 and channels == width:
        return nn.Identity()
    conv = _conv(channels, width, 1, stride=stride, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, bn=nn.BatchNorm2d(width) if batch_norm else nn.Identity()))
