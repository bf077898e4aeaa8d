"""A stage begins before the one ahead of it has ended, and nothing changes."""

import numpy as np
import pytest
import torch
from torch import nn

from excite import attacks
from excite.evaluation import evaluate
from excite.evaluation.batch import Judge, Task
from excite.evaluation.journal import Agenda, Journal

ATTACKS = {
    "pgd": attacks.create("pgd", eps=0.01, step=0.002, random_start=True),
    "autoattack": attacks.create("autoattack", eps=0.01, members=("apgd-ce", "apgd-dlr"), iterations=5),
}


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
        x = torch.rand(40, 3, 8, 8)
    with torch.no_grad():
        return model, x, model(x).argmax(1)


@pytest.mark.parametrize("seed", range(3))
def test_batches_in_any_order_give_the_same_verdicts(
    problem: tuple[nn.Module, torch.Tensor, torch.Tensor], seed: int
) -> None:
    """Four are out at a time, and come back mixed."""
    model, x, y = problem
    whole = evaluate(model, x, y, ATTACKS, batch_size=3, checks=False)
    assert 0 < whole.worst.correct < 40
    journal = Journal(None, key="", correct=torch.ones(40, dtype=torch.bool), attacks=ATTACKS)
    agenda, judge = Agenda(journal, 3, None), Judge(model, x, y, ATTACKS, seed=0, fast=True)
    order, out, stages_out = np.random.default_rng(seed), list[Task](), set[tuple[int, ...]]()
    while True:
        while len(out) < 4 and (task := agenda.next()) is not None:
            out.append(task)
        if not out:
            break
        stages_out.add(tuple(sorted({task.stage for task in out if task.attack == "autoattack"})))
        task = out.pop(int(order.integers(len(out))))
        agenda.take(task, judge(task))
    assert (0, 1) in stages_out
    for name, stages in journal.progress.items():
        assert np.array_equal(whole.outcomes(name), stages[-1].fell_at > 1)
        assert [stage.result.standing for stage in stages] == [stage.standing for stage in whole.attacks[name].stages]
