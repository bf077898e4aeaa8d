"""Wide ResNets have the layers and widths their names promise."""

import pytest
import torch
from torch import nn
from torch.nn.functional import relu

from excite.errors import InputError
from excite.models import WideResNet
from excite.models.resnet import WideBlock


@pytest.mark.parametrize(("depth", "factor"), [(16, 4), (28, 10), (34, 10)])
def test_depth_and_width(depth: int, factor: int) -> None:
    with torch.device("meta"):
        model = WideResNet(depth, factor)
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == depth
    assert model.fc.in_features == 64 * factor


@pytest.mark.parametrize(("channels", "stride"), [(8, 1), (4, 1), (8, 2)])
def test_block_in_place_equals_the_plain_formula(channels: int, stride: int) -> None:
    torch.manual_seed(0)
    block = WideBlock(channels, 8, stride=stride).eval()
    x = torch.randn(2, channels, 6, 6)
    untouched = x.clone()
    active = relu(block.bn1(x))
    shortcut = x if block.shortcut is None else block.shortcut(active)
    assert torch.equal(block(x), block.conv2(relu(block.bn2(block.conv1(active)))) + shortcut)
    assert torch.equal(x, untouched)


@pytest.mark.parametrize("depth", [4, 29])
def test_a_depth_without_blocks_is_refused(depth: int) -> None:
    with pytest.raises(InputError, match="depth"):
        WideResNet(depth, 2)
