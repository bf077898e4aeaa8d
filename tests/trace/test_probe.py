"""A probe is all of its examples, each counting alike, seen as the loop sees them."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from excite.trace import Probe


@pytest.mark.parametrize(("examples", "sizes"), [(200, [100, 100]), (256, [128, 128]), (300, [150, 150]), (9, [9])])
def test_every_example_counts_alike(examples: int, sizes: list[int]) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(examples, 4), torch.randint(0, 3, (examples,))
    x[-examples // 3 :] *= 10
    probe = Probe(x, y, batch_size=128)
    assert [len(batch) for batch, _ in probe.batches] == sizes
    with torch.no_grad():
        shares = sum(float(share()) for _, share in probe.evaluations(model))
        assert shares == pytest.approx(float(cross_entropy(model(x), y)), rel=1e-5)


def test_a_layer_that_the_loop_keeps_in_eval_mode_stays_in_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].eval()
    probe = Probe(3 + torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    modes = [[layer.training for layer in model] for _ in probe.evaluations(model)]
    assert modes == [[True, False, True]]
    model.eval()
    assert [[layer.training for layer in model] for _ in probe.evaluations(model)] == [[True, True, True]]
    assert not model.training
