"""The networks and images for the attack benchmarks.

Our networks are trained at first use, for a few minutes, and stored beside the data.
"""

import collections
import importlib.util
import re
from pathlib import Path

import pyautoattack
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite import data, models
from excite.objectives import PGDAT, Objective, standard_loss
from excite.precision import Precision
from excite.training import descend


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


def trained(
    name: str, *, epochs: int, objective: Objective = standard_loss, precision: Precision = "float32"
) -> nn.Module:
    """One of our small networks, trained for a few epochs on 10,000 images, adversarially if the objective is."""
    torch.manual_seed(0)
    model = models.create(name)
    kind = "plain" if objective is standard_loss else re.sub(r"\W+", "-", str(objective))
    kept = data.data_directory() / "benchmarks" / f"{name}-{epochs}-{kind}-{precision}.pt"
    if kept.exists():
        model.load_state_dict(torch.load(kept, weights_only=True))
        return model.eval()
    train = data.load("cifar10").train
    x, y = train.floats()[:10_000], train.labels[:10_000]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(epochs):
        order = torch.split(torch.randperm(len(x)), 128)
        batches = ((x[batch], y[batch]) for batch in order)
        collections.deque(descend(model, batches, objective, optimizer, precision=precision), maxlen=0)
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), kept)
    return model.eval()


def robust_resnet8() -> nn.Module:
    """A ResNet-8 from one-step adversarial training at eps = 4/255."""
    return trained("resnet8", epochs=3, objective=PGDAT(eps=4 / 255, step=5 / 255, steps=1, random_start=True))


def test_images(count: int) -> tuple[Tensor, Tensor]:
    test = data.load("cifar10").test
    return test.floats()[:count], test.labels[:count]


def gradient(model: nn.Module, x: Tensor, y: Tensor, *, times: int = 1) -> None:
    images = x.detach().requires_grad_()
    for _ in range(times):
        torch.autograd.grad(cross_entropy(model(images), y, reduction="sum"), images)
