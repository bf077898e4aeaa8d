"""A killed evaluation resumes where it was; results in any order give the same state."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.errors import CorruptFileError, InputError
from excite.evaluation import Evaluation, evaluate
from excite.evaluation.batch import Attacker, Journal
from tests.faults.processes import FORKED

BATCH = 2  # of 48 images


def run(journal: Path | None, result: Path, workers: int | None = None) -> None:
    """What each process does: always the same model, the same examples, the same attacks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)]
        model = nn.Sequential(*layers).eval()
        x = torch.rand(48, 3, 8, 8)
    with torch.no_grad():
        y = model(x).argmax(1)
    several = {
        "pgd": attacks.create("pgd", eps=0.01, step=0.002, random_start=True, restarts=2),
        "autoattack": attacks.create("autoattack", eps=0.01, members=["apgd-ce", "apgd-dlr"], iterations=10),
    }
    evaluate(model, x, y, several, batch_size=BATCH, checks=False, journal=journal, workers=workers).save(result)
    torch.set_num_threads(threads)


def run_until_killed(journal: Path, result: Path, rng: np.random.Generator, workers: int | None) -> None:
    """Start a process, let it get a few batches further, then kill it at no particular moment.

    Of one with workers, sometimes kill a worker first: it starts another one.
    """
    target = batches_done(journal) + int(rng.integers(1, 3))
    process = FORKED.Process(target=run, args=(journal, result, workers))
    process.start()
    assert process.pid
    while process.is_alive() and batches_done(journal) < target:
        time.sleep(0.002)
    if workers and rng.random() < 0.5:
        os.kill(children(process.pid)[-1], signal.SIGKILL)
    time.sleep(rng.uniform(0, 0.05))
    process.kill()
    process.join()


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def batches_done(journal: Path) -> int:
    if not journal.exists():
        return 0
    states: dict[str, dict[str, Any]] = json.loads(journal.read_text())["attacks"]
    finished = 48 // BATCH * sum(len(state["stages"]) for state in states.values())
    return finished + sum(int(state["n_entered"]) // BATCH - len(state["left"]) for state in states.values())


@pytest.mark.parametrize(
    ("kills", "workers"),
    [(1, None), pytest.param(20, None, marks=pytest.mark.slow), pytest.param(20, 2, marks=pytest.mark.slow)],
)
def test_sigkill_changes_no_verdict(tmp_path: Path, kills: int, workers: int | None) -> None:
    journal, resumed, whole = tmp_path / "journal.json", tmp_path / "resumed.json", tmp_path / "whole.json"
    rng = np.random.default_rng(kills)
    for _ in range(kills):
        run_until_killed(journal, resumed, rng, workers)
    assert batches_done(journal) > 0
    assert not resumed.exists()
    run(journal, resumed)
    run(None, whole)
    one, two = Evaluation.load(resumed), Evaluation.load(whole)
    assert 0 < two.worst.correct < two.worst.total
    for name in ("clean", "pgd", "autoattack"):
        assert np.array_equal(one.outcomes(name), two.outcomes(name))
        if name != "clean":
            assert [s.standing for s in one.attacks[name].stages] == [s.standing for s in two.attacks[name].stages]
            assert one.attacks[name].cost.backwards == two.attacks[name].cost.backwards
    print(f"the same verdicts after {kills} kills of an evaluation by {workers or 1} processes")


PGD = {"pgd": attacks.create("pgd", eps=0.1, step=0.05)}


@pytest.fixture
def problem() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    with torch.no_grad():
        model.get_parameter("1.weight").copy_(torch.randn(3, 12, generator=generator))
        x = torch.rand(10, 3, 2, 2, generator=generator)
        y: Tensor = model(x).argmax(1)
    return model, x, y


def test_a_finished_evaluation_is_not_repeated(tmp_path: Path, problem: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = problem
    first = evaluate(model, x, y, PGD, journal=tmp_path / "journal.json")
    told: list[int] = []
    again = evaluate(model, x, y, PGD, journal=tmp_path / "journal.json", on_progress=lambda done, _: told.append(done))
    assert told == []
    assert again.to_json()["attacks"] == first.to_json()["attacks"]
    assert again.flags == first.flags


def test_a_folder_is_no_journal(tmp_path: Path, problem: tuple[nn.Module, Tensor, Tensor]) -> None:
    with pytest.raises(InputError, match="file"):
        evaluate(*problem, PGD, journal=tmp_path)


def test_another_evaluations_journal_is_refused(tmp_path: Path, problem: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = problem
    journal = tmp_path / "journal.json"
    evaluate(model, x, y, PGD, journal=journal)
    with pytest.raises(InputError, match="another evaluation"):
        evaluate(model, x, y, PGD, journal=journal, seed=1)
    with pytest.raises(InputError, match="another evaluation"):
        evaluate(model, x * 0.5, y, PGD, journal=journal)
    with torch.no_grad():
        model.get_parameter("1.weight")[0, 0] += 1
    with pytest.raises(InputError, match="another evaluation"):
        evaluate(model, x, y, PGD, journal=journal)


@pytest.mark.parametrize("damage", ["", "{}", "[1, 2]", '{"evaluation": "", "attacks": {"pgd": [0]}}'])
def test_a_damaged_journal_is_refused(tmp_path: Path, problem: tuple[nn.Module, Tensor, Tensor], damage: str) -> None:
    (tmp_path / "journal.json").write_text(damage)
    with pytest.raises(CorruptFileError, match="elete it"):
        evaluate(*problem, PGD, journal=tmp_path / "journal.json")


ATTACKS = {
    "pgd": attacks.create("pgd", eps=0.01, step=0.002, random_start=True),
    "autoattack": attacks.create("autoattack", eps=0.01, members=("apgd-ce", "apgd-dlr"), iterations=5),
}


@pytest.fixture(scope="module")
def ten_classes() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
        x = torch.rand(20, 3, 8, 8)
    with torch.no_grad():
        return model, x, model(x).argmax(1)


def test_results_in_any_order_give_the_same_state(ten_classes: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
    model, x, y = ten_classes
    whole = evaluate(model, x, y, ATTACKS, batch_size=3, checks=False)
    assert 0 < whole.worst.correct < 20
    journal = Journal.open(None, "", ATTACKS, [True] * 20, batch_size=3)
    attacker, order = Attacker(model, x, y, ATTACKS, seed=0), np.random.default_rng(0)
    for name, state in journal.attacks.items():
        while not state.finished:
            while state.left:
                batch = state.left[int(order.integers(len(state.left)))]
                state.update(batch, *attacker.attack_batch(name, len(state.stages), batch, state.fallen(batch)))
            state.next_stage(3)
        assert np.array_equal(whole.outcomes(name), state.robust)
        assert [stage.standing for stage in state.stages] == [stage.standing for stage in whole.attacks[name].stages]


class OtherWayRound(nn.Module):
    """The same weights, another function."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.flip(3))  # type: ignore[no-any-return]


def test_another_function_of_the_same_weights_is_refused(
    tmp_path: Path, problem: tuple[nn.Module, Tensor, Tensor]
) -> None:
    model, x, y = problem
    attack = attacks.create("pgd", eps=0.01)
    evaluate(model, x, y, attack, checks=False, journal=tmp_path / "journal.json")
    with pytest.raises(InputError, match="another evaluation"):
        evaluate(OtherWayRound(model), x, y, attack, checks=False, journal=tmp_path / "journal.json")
