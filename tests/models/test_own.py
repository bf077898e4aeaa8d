"""A user's own network by `package.module:factory`, from the current folder."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from excite import models
from excite.errors import InputError

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, input_shape, width: int = 4):
        super().__init__()
        channels, height, side = input_shape
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * height * side, width), nn.Linear(width, num_classes)
        )

    def forward(self, x):
        return self.layers(x)

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

def lazily_imported(num_classes):
    import {helper}
    return nn.Sequential(nn.Flatten(), nn.Linear(48, num_classes))

made = fixed()
"""
SHAPE = (3, 4, 4)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(CODE.replace("{helper}", f"{name}_helper"))
    (tmp_path / f"{name}_helper.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return name


def test_a_network_gets_what_it_asks_for(module: str) -> None:
    path = list(sys.path)
    net = models.create(f"{module}:Net", num_classes=5, input_shape=SHAPE, width=7)
    assert net(torch.rand(2, *SHAPE)).shape == (2, 5)
    assert net.layers[1].out_features == 7  # type: ignore[index,union-attr]
    assert net.training
    assert isinstance(models.create(f"{module}:fixed", num_classes=3, input_shape=SHAPE), nn.Sequential)
    assert models.create(f"{module}:lazily_imported", num_classes=3, input_shape=SHAPE)
    assert sys.path == path


def test_it_is_normalized_like_others_and_follows_the_seed(module: str) -> None:
    def make() -> nn.Module:
        torch.manual_seed(3)
        return models.create(f"{module}:fixed", num_classes=3, input_shape=SHAPE, normalize=([0.5] * 3, [0.2] * 3))

    first, second = make(), make()
    assert isinstance(first[0], models.Normalize)  # type: ignore[index]
    assert all(map(torch.equal, first.parameters(), second.parameters()))


@pytest.mark.parametrize(
    ("factory", "options", "keyword"),
    [
        ("nothing", {}, "module:factory"),
        ("made", {}, "made"),
        ("CODE", {}, "module:factory"),
        ("fixed", {"width": 3}, "width"),
        ("Net", {"width": "wide"}, "width"),
        ("torch", {}, "module:factory"),
    ],
)
def test_what_cannot_be_built_is_refused(module: str, factory: str, options: dict[str, Any], keyword: str) -> None:
    with pytest.raises(InputError, match=keyword):
        models.create(f"{module}:{factory}", num_classes=3, input_shape=SHAPE, **options)


def test_a_network_of_other_images_or_classes_is_refused(module: str) -> None:
    with pytest.raises(InputError, match="4 logits"):
        models.create(f"{module}:fixed", num_classes=4, input_shape=SHAPE)
    with pytest.raises(InputError, match="3×5×5"):
        models.create(f"{module}:fixed", num_classes=3, input_shape=(3, 5, 5))
