"""A real CIFAR-10 network, the ResNet-18 that `pyautoattack` ships: its known accuracies come out."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyautoattack
import pytest
import torch
from torch import Tensor, nn

from excite import attacks, data
from excite.attacks import fast_inference
from excite.evaluation import evaluate

pytestmark = [pytest.mark.slow, pytest.mark.full_data]


@pytest.fixture(scope="module")
def resnet18() -> nn.Module:
    folder = Path(pyautoattack.__file__).parent / "examples"
    spec = importlib.util.spec_from_file_location("pyautoattack_resnet", folder / "resnet.py")
    assert spec is not None
    assert spec.loader is not None
    definition = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(definition)
    model: nn.Module = definition.ResNet18()
    model.load_state_dict(torch.load(folder / "model_test.pt", weights_only=True, map_location="cpu"))
    return model.eval()


@pytest.fixture(scope="module")
def images(full_dataset: Callable[[str], data.Dataset]) -> tuple[Tensor, Tensor]:
    test = full_dataset("cifar10").test
    return test.floats()[:60], test.labels[:60]


def test_known_accuracies(resnet18: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    several = {
        "one": attacks.create("pgd", eps=1 / 255, step=0.1 / 255),
        "four": attacks.create("pgd", eps=4 / 255, step=0.5 / 255),
    }
    result = evaluate(resnet18, *images, several, batch_size=60)
    assert result.clean.value > 0.85
    assert 0.25 < result.robust["one"].value < 0.6
    assert result.robust["four"].value < 0.05
    assert result.flags == ()


def test_apgd_gives_the_packages_verdicts(resnet18: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    x, y = images[0][:20], images[1][:20]
    attack = attacks.create("apgd-ce", eps=1 / 255, iterations=20)
    verdicts = evaluate(resnet18, x, y, {"apgd-ce": attack}, checks=False).outcomes("apgd-ce")
    direct = pyautoattack.autopgd_base.APGDAttack(resnet18, n_iter=20, eps=1 / 255, seed=0)
    with torch.random.fork_rng(), torch.no_grad():
        right = resnet18(x).argmax(1) == y
        x_adv = x.clone()
        x_adv[right] = direct.perturb(x[right], y[right])
        assert np.array_equal(verdicts, resnet18(x_adv).argmax(1) == y)


def test_the_fast_model_is_the_same_function(resnet18: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    x = images[0][:8].double()
    model = resnet18.double()
    fast = fast_inference(model)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-9, atol=1e-9)
    assert fast.folded
    model.float()
    assert (fast_inference(model)(x.float()) - model(x.float())).abs().max() < 1e-4
