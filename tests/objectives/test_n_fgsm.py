"""N-FGSM against ten plain lines, and the watch for catastrophic overfitting."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite import data, models
from excite.errors import InputError
from excite.objectives import NFGSM
from excite.schedules import constant
from excite.training import train
from excite.training.collapse import overfitted


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_equals_its_plain_twin(
    new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], assert_same_step: Any, noise: float
) -> None:
    (x, y), eps, model, twin = batch, 0.1, new_network(), new_network()
    loss = NFGSM(eps=eps, noise=noise)(model, x, y, torch.Generator().manual_seed(3))
    draws = torch.rand(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    noisy = (x + noise * eps * (2 * draws - 1)).clamp(0, 1).requires_grad_()
    twin.eval()
    (gradient,) = torch.autograd.grad(cross_entropy(twin(noisy), y), noisy)
    twin.train()
    x_adv = (noisy.detach() + eps * gradient.sign()).clamp(0, 1)
    assert_same_step(model, loss, twin, cross_entropy(twin(x_adv), y))
    furthest = float((x_adv - x).abs().max())
    assert eps * noise < furthest <= (noise + 1) * eps + 1e-9


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="noise"):
        NFGSM(noise=-1.0)
    with pytest.raises(InputError, match="8/255"):
        NFGSM(eps=8.0)


class OneStepOnly(nn.Module):
    """Class 0 between 0.47 and 0.53, and again above 0.6, where a single long step lands."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        pixel = x.flatten(1)
        score = self.weight * torch.where(pixel > 0.6, 1.0, 0.03 - (pixel - 0.5).abs())
        return torch.cat([score, -score], 1)


def test_the_watch_measures_one_step_and_pgd() -> None:
    x, y = torch.full((4, 1, 1, 1), 0.52), torch.zeros(4, dtype=torch.int64)
    assert NFGSM(eps=0.1).watch(OneStepOnly(), x, y) == {"single_step_accuracy": 1.0, "pgd_accuracy": 0.0}
    assert NFGSM(eps=0.005).watch(OneStepOnly(), x, y) == {"single_step_accuracy": 1.0, "pgd_accuracy": 1.0}


def epochs(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"pgd_accuracy": pgd, "single_step_accuracy": single} for pgd, single in pairs]


@pytest.mark.parametrize(
    ("pairs", "flagged"),
    [
        ([(0.3, 0.4), (0.1, 0.8)], True),
        ([(0.3, 0.4), (0.1, 0.3)], False),  # the training fails altogether
        ([(0.3, 0.4), (0.2, 0.8)], False),
        ([(0.1, 0.2), (0.3, 0.4), (0.0, 0.9)], True),
        ([(0.3, 0.4), (0.1, 0.8), (0.05, 0.9)], False),  # reported before
        ([(0.0, 0.2)], False),
    ],
)
def test_catastrophic_overfitting_is_reported_once(pairs: list[tuple[float, float]], *, flagged: bool) -> None:
    problem = overfitted(epochs(*pairs))
    assert (problem is not None) == flagged
    assert problem is None or "pgd_at" in problem


class Collapsing(NFGSM):
    """Reports what a network that overfits catastrophically would."""

    def watch(self, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
        self.seen.append(len(x))
        return epochs((0.5, 0.5), (0.5, 0.6), (0.1, 0.7), (0.0, 0.9))[len(self.seen) - 1]

    seen: list[int] = []  # noqa: RUF012


def test_a_training_warns_and_keeps_the_numbers() -> None:
    model, split = models.create("lenet5", input_shape=(1, 28, 28)), data.load("mnist-sample").train.subset(160)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = train(model, split, Collapsing(), optimizer, constant(0.05), epochs=4, batch_size=32)
    (warning,) = caught
    assert "epoch 3" in str(warning.message)
    assert [metrics.extra["pgd_accuracy"] for metrics in history.epochs] == [0.5, 0.5, 0.1, 0.0]
    assert Collapsing.seen == [128] * 4


def test_watching_changes_nothing() -> None:
    split, weights = data.load("mnist-sample").train.subset(160), []
    for objective in (NFGSM(), Collapsing()):
        Collapsing.seen.clear()
        torch.manual_seed(0)
        model = models.create("lenet5", input_shape=(1, 28, 28))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        train(model, split, objective, optimizer, constant(0.05), epochs=2, batch_size=32)
        weights.append([parameter.detach() for parameter in model.parameters()])
    assert all(map(torch.equal, *weights))
