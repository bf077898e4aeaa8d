"""DenseNet-BC grows as its definition says."""

import pytest
import torch
from torch import nn

from excite.errors import InputError
from excite.models import DenseNet


def test_channels_and_sides_after_each_part() -> None:
    model = DenseNet(40, 12)
    shapes = []
    for part in model.blocks:
        part.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape[1:])))
    model.eval()(torch.zeros(1, 3, 32, 32))
    assert shapes == [(96, 32, 32), (48, 16, 16), (120, 16, 16), (60, 8, 8), (132, 8, 8)]


@pytest.mark.parametrize("depth", [22, 40])
def test_it_has_its_depth_in_layers(depth: int) -> None:
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in DenseNet(depth, 12).modules()) == depth


@pytest.mark.parametrize("depth", [4, 41])
def test_a_depth_without_layers_is_refused(depth: int) -> None:
    with pytest.raises(InputError, match="depth"):
        DenseNet(depth)
