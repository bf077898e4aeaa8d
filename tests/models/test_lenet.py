"""LeNet-5 follows its definition, layer by layer, and activates its logits only when told to."""

from typing import Any

import pytest
import torch
from torch import nn

from excite.errors import InputError
from excite.models import LeNet5


@pytest.mark.parametrize("activate_logits", [False, True])
@pytest.mark.parametrize(("activation", "layer"), [("relu", nn.ReLU()), ("tanh", nn.Tanh())])
def test_equals_the_plain_definition(activation: Any, layer: nn.Module, activate_logits: bool) -> None:
    torch.manual_seed(0)
    model = LeNet5(activation=activation, activate_logits=activate_logits)
    layers = [model.conv1, layer, nn.MaxPool2d(2), model.conv2, layer, nn.MaxPool2d(2), nn.Flatten()]
    layers += [model.fc1, layer, model.fc2, layer, model.fc3]
    if activate_logits:
        layers.append(layer)
    images = torch.rand(8, 1, 28, 28)
    assert torch.equal(model(images), nn.Sequential(*layers)(images))


def test_activated_logits_are_the_activation_of_the_logits() -> None:
    torch.manual_seed(0)
    plain = LeNet5(activation="relu")
    activated = LeNet5(activation="relu", activate_logits=True)
    activated.load_state_dict(plain.state_dict())
    images = torch.rand(8, 1, 28, 28)
    assert plain(images).min() < 0
    assert torch.equal(activated(images), plain(images).relu())


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 17, 40), (1, 28, 28), (3, 32, 32)])
def test_the_flattened_size_follows_the_image(shape: tuple[int, int, int]) -> None:
    assert LeNet5(input_shape=shape)(torch.zeros(2, *shape)).shape == (2, 10)


def test_an_image_that_is_too_small_is_refused() -> None:
    with pytest.raises(InputError, match="16×16"):
        LeNet5(input_shape=(1, 15, 28))
