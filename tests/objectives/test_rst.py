"""RST is TRADES with weights: labelled half first."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.errors import InputError
from excite.objectives import RST, Trades, rst_loss, trades_loss


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_at_weight_one_it_is_trades(
    new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], assert_same_step: Any
) -> None:
    model, twin = new_network(), new_network()
    loss = rst_loss(model, *batch, generator=generator())
    assert_same_step(model, loss, twin, trades_loss(twin, *batch, generator=generator()))


@pytest.mark.parametrize("size", [10, 9])
@pytest.mark.parametrize("weight", [0.0, 0.3, 2.5])
def test_equals_the_weighted_mean_written_out(
    new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], assert_same_step: Any, weight: float, size: int
) -> None:
    model, twin = new_network(), new_network()
    x, y = batch[0][:size], batch[1][:size]
    loss = rst_loss(model, x, y, unlabelled_weight=weight, beta=2.0, generator=generator())
    x_adv = Trades().perturb(twin, x, y, generator())
    natural, adversarial = twin(x), twin(x_adv)
    total = torch.zeros((), dtype=torch.float64)
    labelled = 5
    for i in range(size):
        p, q = natural[i].softmax(0), adversarial[i].softmax(0)
        share = cross_entropy(natural[i], y[i]) + 2.0 * (p * (p.log() - q.log())).sum()
        total = total + (share if i < labelled else weight * share)
    assert_same_step(model, loss, twin, total / (labelled + weight * (size - labelled)))


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="0 or more"):
        RST(unlabelled_weight=-1.0)
