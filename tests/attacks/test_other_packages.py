"""Attacks of foolbox and torchattacks are functions that `evaluate` takes, in one line each as the docs show."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.evaluation import evaluate


class Stepwise:
    """An attack object of torchattacks' shape: made with the model, called with images and labels."""

    def __init__(self, model: nn.Module, eps: float) -> None:
        self.model, self.eps = model, eps
        self.device = next(model.parameters()).device

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.model.eval()
        x = inputs.clone().to(self.device).requires_grad_()
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(self.model(x), labels.to(self.device))
        (gradient,) = torch.autograd.grad(loss, x)
        return (inputs + self.eps * gradient.sign()).clamp(0, 1)


@pytest.fixture(params=["torchattacks", "an object of its shape"])
def kind(request: pytest.FixtureRequest) -> Any:
    return Stepwise if request.param != "torchattacks" else pytest.importorskip("torchattacks").FGSM


def test_an_attack_of_torchattacks(kind: Any, convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    """FGSM is ours, too: the same verdicts, at one radius and on a curve."""
    theirs = lambda _, x, y, eps=0.01, norm="linf": kind(convnet, eps=eps)(x, y)  # noqa: ARG005, E731
    ours = attacks.create("fgsm", eps=0.01)
    result = evaluate(convnet, images, labels, {"theirs": theirs, "ours": ours}, batch_size=16)
    assert np.array_equal(result.outcomes("theirs"), result.outcomes("ours"))
    assert 0 < result.accuracy("ours").correct < len(images)
    curve = evaluate(convnet, images, labels, {"theirs": theirs}, eps=[0.005, 0.01], checks=False).curves["theirs"]
    assert curve.accuracies[-1] == result.accuracy("theirs")


def test_an_attack_of_foolbox(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    foolbox = pytest.importorskip("foolbox")
    attack = foolbox.attacks.LinfFastGradientAttack(random_start=False)

    def theirs(model: nn.Module, x: Tensor, y: Tensor, eps: float = 0.01, norm: str = "linf") -> Tensor:
        x_adv: Tensor = attack(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=eps)[1]
        return x_adv

    result = evaluate(convnet, images, labels, {"theirs": theirs, "ours": attacks.create("fgsm", eps=0.01)})
    assert np.array_equal(result.outcomes("theirs"), result.outcomes("ours"))
