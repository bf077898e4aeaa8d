"""A normalisation inside the model equals one outside of it."""

import math

import pytest
import torch
from torch import nn

from excite.errors import InputError
from excite.models import Normalize, create

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def test_inside_equals_outside() -> None:
    torch.manual_seed(0)
    bare = create("resnet8")
    torch.manual_seed(0)
    model = create("resnet8", normalize=(MEAN, STD))
    images = torch.rand(4, 3, 32, 32)
    outside = torch.stack([(images[:, c] - MEAN[c]) / STD[c] for c in range(3)], 1)
    torch.testing.assert_close(model.eval()(images), bare.eval()(outside))


def test_it_travels_with_the_weights_and_is_not_trained() -> None:
    model = create("lenet5", input_shape=(1, 28, 28), normalize=((0.1307,), (0.3081,)))
    assert {"normalize.mean", "normalize.std", "network.conv1.weight"} <= model.state_dict().keys()
    assert all(name.startswith("network.") for name, _ in model.named_parameters())
    other = create("lenet5", input_shape=(1, 28, 28), normalize=((0.0,), (1.0,)))
    other.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(model(images), other(images))


def test_gradients_pass_to_the_image() -> None:
    images = torch.rand(2, 3, 4, 4, requires_grad=True)
    Normalize(MEAN, STD)(images).sum().backward()
    assert images.grad is not None
    expected = (1 / torch.tensor(STD)).view(1, 3, 1, 1).expand(2, 3, 4, 4)
    torch.testing.assert_close(images.grad, expected)


@pytest.mark.parametrize("std", [(0.2, 0.0, 0.2), (0.2, -1.0, 0.2), (0.2, math.nan, 0.2), (0.2, math.inf, 0.2)])
def test_an_impossible_deviation_is_refused(std: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="std"):
        Normalize(MEAN, std)


def test_one_channel_is_given_as_two_numbers() -> None:
    grey = create("lenet5", input_shape=(1, 28, 28), normalize=(0.1307, 0.3081))
    torch.testing.assert_close(grey.state_dict()["normalize.std"], torch.tensor([[[0.3081]]]))


def test_lengths_must_fit() -> None:
    with pytest.raises(InputError, match="channel"):
        Normalize(MEAN, (0.2,))
    with pytest.raises(InputError, match="normalize"):
        create("resnet8", input_shape=(1, 28, 28), normalize=(MEAN, STD))


def test_no_normalisation_adds_no_layer() -> None:
    assert not any(isinstance(module, Normalize) for module in create("resnet8").modules())
    assert isinstance(create("resnet8", normalize=(MEAN, STD)), nn.Sequential)
