"""An evaluation has the same results in one process, in several, on Ray, and when workers die."""

import dataclasses
import multiprocessing
import os
import signal
import socket
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from excite import attacks, execution
from excite.attacks import Attack
from excite.errors import InputError
from excite.evaluation import Evaluation, evaluate
from tests.faults.processes import FORKED

SEVERAL: dict[str, Attack] = {
    "pgd": attacks.create("pgd", eps=0.01, step=0.002, random_start=True),
    "autoattack": attacks.create("autoattack", eps=0.01, members=("apgd-ce", "apgd-dlr"), iterations=5),
}


@dataclasses.dataclass(frozen=True)
class Deadly(Attack):
    """PGD that kills the first `deaths` workers which meet a certain image."""

    notes: Path
    deaths: int
    eps: float = 0.01
    norm: Any = "linf"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if multiprocessing.parent_process() is not None and bool((x[:, 0, 0, 0] == 0.5).any()):
            n_dead = len(list(self.notes.iterdir()))
            if n_dead < self.deaths:
                (self.notes / str(n_dead)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return SEVERAL["pgd"](model, x, y, generator)

    def passes(self, classes: int) -> float:
        return SEVERAL["pgd"].passes(classes)


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
        x = torch.rand(40, 3, 8, 8)
    x[0, 0, 0, 0] = 0.5  # the deadly image
    with torch.no_grad():
        return model, x, model(x).argmax(1)


def same(one: Evaluation, other: Evaluation) -> None:
    assert one.attacks.keys() == other.attacks.keys()
    for name, result in one.attacks.items():
        assert np.array_equal(result.robust, other.attacks[name].robust)
        assert [stage.standing for stage in result.stages] == [stage.standing for stage in other.attacks[name].stages]
        assert result.cost.backwards == other.attacks[name].cost.backwards
        if result.curve is not None:
            assert np.array_equal(result.curve.fell_at, other.curves[name].fell_at)
    assert one.flags == other.flags


class StopError(Exception):
    pass


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find this file by the name that pytest gave it; they are forked, which is faster."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    monkeypatch.setattr(execution, "SPAWN", FORKED)


@pytest.mark.usefixtures("importable")
def test_started_by_one_process_and_resumed_by_two_of_which_one_is_killed(tmp_path: Path) -> None:
    model, x, y = problem()
    x, y = x.roll(16, 0), y.roll(16)  # the deadly image is in the first batch that is left
    whole = evaluate(model, x, y, SEVERAL, batch_size=8, checks=False)
    assert 0 < whole.worst.correct < 40
    told: list[tuple[int, int]] = []

    def stop(*at: int) -> None:
        told.append((at[0], at[1]))
        if at == (16, 40):  # of the first attack
            raise StopError

    notes, journal = tmp_path / "notes", tmp_path / "journal.json"
    notes.mkdir()
    deadly = {**SEVERAL, "pgd": Deadly(notes, deaths=1)}
    shared = partial(evaluate, model, x, y, deadly, batch_size=8, checks=False, journal=journal)
    with pytest.raises(StopError):
        shared(on_progress=stop)
    same(whole, shared(workers=2, on_progress=lambda *at: told.append(at)))
    assert len(list(notes.iterdir())) == 1
    assert told[:5] == [(8, 40), (16, 40), (24, 40), (32, 40), (40, 40)]  # it resumes where it stopped
    assert told[-1][0] == told[-1][1]


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_processes_changes_no_result(workers: int) -> None:
    model, x, y = problem()
    for eps in (None, (0.005, 0.01)):
        whole = evaluate(model, x, y, SEVERAL, eps=eps, batch_size=8, checks=False)
        same(whole, evaluate(model, x, y, SEVERAL, eps=eps, batch_size=8, checks=False, workers=workers))


def leaves_the_box(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """In another process only."""
    return x if multiprocessing.parent_process() is None else x + 1


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
def test_a_workers_error_is_ours() -> None:
    model, x, y = problem()
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        evaluate(model, x, y, {"out": leaves_the_box}, batch_size=8, checks=False, workers=2)


@pytest.mark.slow
def test_a_class_that_workers_cannot_find(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = types.ModuleType("nowhere")
    monkeypatch.setitem(sys.modules, "nowhere", nowhere)
    exec("def still(model, x, y): return x", vars(nowhere))  # noqa: S102 - a function that only this process has
    with pytest.raises(InputError, match="workers=1"):
        evaluate(*problem(), {"here": nowhere.still}, batch_size=8, checks=False, workers=2)


@pytest.mark.slow
def test_ray_gives_the_same_results() -> None:
    pytest.importorskip("ray")
    model, x, y = problem()
    whole = evaluate(model, x, y, SEVERAL, batch_size=8, checks=False)
    same(whole, evaluate(model, x, y, SEVERAL, batch_size=8, checks=False, engine="ray", workers=2))


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"workers": 0}, "workers"),
        ({"engine": "rai"}, '"ray"'),
        ({"address": "auto"}, 'engine="ray"'),
    ],
)
def test_errors_carry_the_cure(options: dict[str, Any], cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        evaluate(*problem(), SEVERAL, **options)


def test_what_cannot_be_sent_is_refused() -> None:
    model, x, y = problem()
    with pytest.raises(InputError, match="workers=1"):
        evaluate(model, x, y, {"local": lambda _model, x, _y: x}, batch_size=8, workers=2)


@pytest.mark.slow
def test_a_ray_address_that_does_not_answer() -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="ray start"):
            evaluate(*problem(), SEVERAL, engine="ray", address=address)
