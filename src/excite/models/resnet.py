"""ResNets for small images: one class; a `Layout` gives the type of block, the widths and the depths.

`cifar(depth)` is the narrow family of He et al.'s CIFAR experiments (6n + 2 layers, widths 16/32/64).
`RESNET18` and `RESNET50_BOTTLENECK` have the ImageNet widths (64 to 512) and a 3×3 stem that keeps 32×32 pixels.
Without batch norm, convolutions have biases and fan-in initialization, and residual branches are scaled down by
√(number of blocks), so that activations neither grow nor vanish with depth.

The ReLUs work in place: nothing they overwrite is needed for a first or second derivative.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import relu

from excite.errors import InputError
from excite.models.layers import he_normal


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, *, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1 = _conv(channels, width, 3, stride=stride, bias=not batch_norm)
        self.bn1 = _norm(width, batch_norm)
        self.conv2 = _conv(width, width, 3, bias=not batch_norm)
        self.bn2 = _norm(width, batch_norm)
        self.shortcut = _shortcut(channels, width, stride=stride, batch_norm=batch_norm)

    @property
    def last_conv(self) -> nn.Conv2d:
        return self.conv2

    def forward(self, x: Tensor) -> Tensor:
        branch = relu(self.bn1(self.conv1(x)), inplace=True)
        branch = self.bn2(self.conv2(branch))
        return relu(branch.add_(self.shortcut(x)), inplace=True)


class Bottleneck(nn.Module):
    """A 1×1, a 3×3 and a 1×1 convolution with four times the width, and a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, *, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1 = _conv(channels, width, 1, bias=not batch_norm)
        self.bn1 = _norm(width, batch_norm)
        self.conv2 = _conv(width, width, 3, stride=stride, bias=not batch_norm)
        self.bn2 = _norm(width, batch_norm)
        self.conv3 = _conv(width, width * self.expansion, 1, bias=not batch_norm)
        self.bn3 = _norm(width * self.expansion, batch_norm)
        self.shortcut = _shortcut(channels, width * self.expansion, stride=stride, batch_norm=batch_norm)

    @property
    def last_conv(self) -> nn.Conv2d:
        return self.conv3

    def forward(self, x: Tensor) -> Tensor:
        branch = relu(self.bn1(self.conv1(x)), inplace=True)
        branch = relu(self.bn2(self.conv2(branch)), inplace=True)
        branch = self.bn3(self.conv3(branch))
        return relu(branch.add_(self.shortcut(x)), inplace=True)


@dataclass(frozen=True)
class Layout:
    """Stage i has `depths[i]` blocks of width `widths[i]`; every stage but the first halves the side of the image."""

    block: type[BasicBlock] | type[Bottleneck]
    widths: tuple[int, ...]
    depths: tuple[int, ...]


def cifar(depth: int) -> Layout:
    """6n + 2 layers: n BasicBlocks at each of the widths 16, 32, 64.

    >>> cifar(20).depths
    (3, 3, 3)
    """
    n, rest = divmod(depth - 2, 6)
    if n < 1 or rest:
        raise InputError(f"depth is {depth}; a CIFAR ResNet has 6n + 2 layers, for example 8, 20, 50 or 110.")
    return Layout(BasicBlock, widths=(16, 32, 64), depths=(n, n, n))


RESNET18 = Layout(BasicBlock, widths=(64, 128, 256, 512), depths=(2, 2, 2, 2))
RESNET50_BOTTLENECK = Layout(Bottleneck, widths=(64, 128, 256, 512), depths=(3, 4, 6, 3))


class ResNet(nn.Module):
    """A 3×3 stem, the stages of `layout`, global average pooling, one linear layer."""

    def __init__(
        self,
        layout: Layout,
        *,
        num_classes: int = 10,
        input_shape: tuple[int, int, int] = (3, 32, 32),
        batch_norm: bool = True,
    ) -> None:
        super().__init__()
        channels = layout.widths[0]
        self.conv1 = _conv(input_shape[0], channels, 3, bias=not batch_norm)
        self.bn1 = _norm(channels, batch_norm)
        self.stages = nn.Sequential()
        for number, (width, depth) in enumerate(zip(layout.widths, layout.depths, strict=True)):
            stage = nn.Sequential()
            for position in range(depth):
                stride = 2 if number > 0 and position == 0 else 1
                stage.append(layout.block(channels, width, stride=stride, batch_norm=batch_norm))
                channels = width * layout.block.expansion
            self.stages.append(stage)
        self.fc = nn.Linear(channels, num_classes)
        if batch_norm:
            he_normal(self)
        else:
            he_normal(self, mode="fan_in")
            for module in self.modules():
                if isinstance(module, BasicBlock | Bottleneck):
                    module.last_conv.weight.data.mul_(sum(layout.depths) ** -0.5)

    def forward(self, images: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(images)), inplace=True)
        x = self.stages(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _conv(channels: int, width: int, kernel: int, *, stride: int = 1, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=bias)


def _norm(channels: int, batch_norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()


def _shortcut(channels: int, width: int, *, stride: int, batch_norm: bool) -> nn.Module:
    """Return the identity, or a 1×1 convolution if the shape changes."""
    if stride == 1 and channels == width:
        return nn.Identity()
    shortcut = nn.Sequential()
    shortcut.add_module("conv", _conv(channels, width, 1, stride=stride, bias=False))
    shortcut.add_module("bn", _norm(width, batch_norm))
    return shortcut
