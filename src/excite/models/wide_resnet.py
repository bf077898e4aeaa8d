"""Wide ResNets (WRN-depth-factor): pre-activation ResNets, `factor` times as wide as CIFAR ResNets, no dropout."""

from torch import Tensor, nn
from torch.nn.functional import relu

from excite.errors import InputError
from excite.models.layers import he_normal

WIDTHS = (16, 32, 64)


class WideBlock(nn.Module):
    """BN, ReLU, 3×3, BN, ReLU, 3×3, and a shortcut; a 1×1 shortcut also starts after the first ReLU."""

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        same = stride == 1 and channels == width
        self.shortcut = None if same else nn.Conv2d(channels, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = relu(self.bn1(x), inplace=True)
        branch = relu(self.bn2(self.conv1(active)), inplace=True)
        total: Tensor = self.conv2(branch).add_(x if self.shortcut is None else self.shortcut(active))
        return total


class WideResNet(nn.Module):
    """`depth` = 6n + 4 layers: a stem, n blocks at each of the widths 16, 32, 64 times `factor`, and a linear layer."""

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
        channels = WIDTHS[0]
        self.conv1 = nn.Conv2d(input_shape[0], channels, 3, padding=1, bias=False)
        self.stages = nn.Sequential()
        for number, width in enumerate(WIDTHS):
            stage = nn.Sequential()
            for position in range(blocks):
                stride = 2 if number > 0 and position == 0 else 1
                stage.append(WideBlock(channels, width * factor, stride=stride))
                channels = width * factor
            self.stages.append(stage)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, num_classes)
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stages(self.conv1(images))
        x = relu(self.bn(x), inplace=True)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits
