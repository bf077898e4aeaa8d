"""ResNets have the layers their names promise and train with and without batch-norm."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot, relu

from excite.errors import InputError
from excite.models import ResNet, create
from excite.models.resnet import RESNET18, BasicBlock, Bottleneck, cifar


@pytest.mark.parametrize("depth", [8, 20, 50, 110])
def test_a_cifar_resnet_has_its_depth_in_layers(depth: int) -> None:
    layers = [
        name
        for name, module in ResNet(cifar(depth)).named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "shortcut" not in name
    ]
    assert len(layers) == depth


@pytest.mark.parametrize("depth", [2, 9, 19])
def test_a_depth_without_blocks_is_refused(depth: int) -> None:
    with pytest.raises(InputError, match="depth"):
        cifar(depth)


def test_stages_halve_the_image() -> None:
    model = ResNet(RESNET18)
    sides = []
    for stage in model.stages:
        stage.register_forward_hook(lambda _module, _inputs, output: sides.append(tuple(output.shape[1:])))
    model.eval()(torch.zeros(1, 3, 32, 32))
    assert sides == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("batch_norm", [True, False])
def test_basic_block_in_place_equals_the_plain_formula(batch_norm: bool, stride: int) -> None:
    torch.manual_seed(0)
    block = BasicBlock(8, 8, stride=stride, batch_norm=batch_norm).eval()
    x = torch.rand(2, 8, 6, 6)
    untouched = x.clone()
    branch = block.bn2(block.conv2(relu(block.bn1(block.conv1(x)))))
    assert torch.equal(block(x), relu(branch + block.shortcut(x)))
    assert torch.equal(x, untouched)


def test_bottleneck_in_place_equals_the_plain_formula() -> None:
    torch.manual_seed(0)
    block = Bottleneck(32, 8, stride=1, batch_norm=True).eval()
    x = torch.rand(2, 32, 6, 6)
    untouched = x.clone()
    branch = relu(block.bn2(block.conv2(relu(block.bn1(block.conv1(x))))))
    assert torch.equal(block(x), relu(block.bn3(block.conv3(branch)) + x))
    assert torch.equal(x, untouched)


@pytest.mark.parametrize("name", ["resnet8", "resnet110"])
def test_without_batch_norm_there_is_none_and_activations_stay_bounded(name: str) -> None:
    torch.manual_seed(0)
    model = create(name, batch_norm=False)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    logits = model(torch.rand(8, 3, 16, 16))
    assert 0.01 < logits.std().item() < 1


@pytest.mark.parametrize("batch_norm", [True, False])
def test_resnet8_learns_a_few_images(batch_norm: bool) -> None:
    torch.manual_seed(0)
    model = create("resnet8", num_classes=4, batch_norm=batch_norm)
    images, labels = torch.rand(16, 3, 16, 16), torch.arange(16) % 4
    images += one_hot(labels, 4)[:, :3, None, None] * 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(60):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss.item() < 0.2
