"""A training step of any objective never makes the host wait for a GPU, and attacks do once per iteration at most."""

from typing import Any

import pytest
import torch
from torch import nn

from excite import attacks, models
from excite.attacks import fast_inference
from excite.attacks.auto_pgd import APGD
from excite.errors import InputError
from excite.objectives import AWP, NFGSM, PGDAT, RST, Standard, Trades
from excite.training import descend
from tests.host_waits import waits_of_the_host


def batch(size: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(size, 1, 28, 28, generator=generator), torch.randint(0, 10, (size,), generator=generator)


def lenet() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return models.create("lenet5", input_shape=(1, 28, 28))


@pytest.mark.parametrize(
    "objective",
    [
        Standard(),
        NFGSM(),
        PGDAT(steps=3),
        PGDAT(steps=3, random_start=True),
        Trades(steps=3),
        RST(steps=3),
        AWP(steps=3),
    ],
)
def test_a_training_step_waits_for_nothing(objective: Any) -> None:
    model = lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    steps = descend(model, [batch()] * 3, objective, optimizer, generators=[torch.Generator()] * 3)
    next(steps)  # traces the model, and checks the first batch
    with waits_of_the_host() as waits:
        assert len(list(steps)) == 2
    assert waits.count == 0


def test_the_first_batch_of_a_model_is_checked() -> None:
    objective, (x, y) = PGDAT(steps=1), batch()
    for model in (lenet(), lenet()):
        with pytest.raises(InputError, match="255"):
            objective(model, 255 * x, y)
        objective(model, x, y)


def iterations_cost(attack: Any, fewer: int, more: int) -> float:
    """Waits per iteration, from two runs of different length."""
    counts = []
    for iterations in (fewer, more):
        with waits_of_the_host() as waits:
            attack(iterations)
        counts.append(waits.count)
    return (counts[1] - counts[0]) / (more - fewer)


@pytest.mark.parametrize("eps", [0.001, 0.05])
@pytest.mark.parametrize("variant", ["apgd-ce", "apgd-dlr"])
def test_an_iteration_of_apgd_waits_once(variant: Any, eps: float) -> None:
    model, (x, _) = fast_inference(lenet().eval()), batch()
    y = model(x).argmax(1)

    def attack(iterations: int) -> None:
        APGD(variant, eps, iterations=iterations)(model, x, y, None)

    assert iterations_cost(attack, 10, 20) <= 1


@pytest.mark.parametrize(("early_stop", "most"), [(False, 0), (True, 1)])
def test_a_step_of_pgd_waits_only_to_see_who_has_fallen(early_stop: bool, most: int) -> None:
    model, (x, _) = fast_inference(lenet().eval()), batch()
    y = model(x).argmax(1)

    def attack(steps: int) -> None:
        attacks.pgd(model, x, y, eps=0.02, step=0.002, steps=steps, early_stop=early_stop)

    assert iterations_cost(attack, 5, 10) <= most
