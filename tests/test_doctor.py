"""`excite doctor` says what the machine is, measures, and draws its conclusions from what it measured."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from excite.doctor import Diagnosis, Speed, diagnose
from excite.runs.records import Circumstances
from tests.command_line import call

CPU = torch.device("cpu")


def diagnosis(*speeds: Speed, bfloat16: bool = True) -> Diagnosis:
    base = Speed("float32", 100.0, 50.0)
    where = Circumstances("a machine", "cpu", 1, {"torch": "2"})
    return Diagnosis(where, bfloat16, ["cpu"], [base, *speeds])


def test_it_measures_without_drawing_random_numbers() -> None:
    before = torch.get_rng_state()
    told: list[tuple[int, int]] = []
    found = diagnose(CPU, compile=False, rounds=1, on_progress=lambda *at: told.append(at))
    assert torch.equal(torch.get_rng_state(), before)
    assert told == [(1, 2), (2, 2)]
    assert [speed.name for speed in found.speeds] == ["float32", "bf16"]
    assert all(speed.training_step and speed.attack_gradient and not speed.problem for speed in found.speeds)
    assert torch.__version__.startswith(found.circumstances.versions["torch"])
    assert json.loads(json.dumps(found.to_json()))["advice"] == found.advice


def test_advice_follows_from_the_speeds() -> None:
    (faster,) = diagnosis(Speed("bf16", 50.0, 20.0)).advice
    assert all(words in faster for words in ("bf16 is worth using to train and attack", "2.00×", "2.50×"))
    (slower,) = diagnosis(Speed("torch.compile", 99.0, 50.0)).advice
    assert "torch.compile does not help" in slower
    (mixed,) = diagnosis(Speed("torch.compile", 110.0, 40.0)).advice
    assert "worth using to attack here" in mixed
    (broken,) = diagnosis(Speed("torch.compile", problem="no compiler")).advice
    assert "no compiler" in broken
    emulated = diagnosis(Speed("bf16", 5000.0, 2000.0), bfloat16=False)
    assert "does not help" in emulated.advice[0]
    assert "many times slower" in emulated.advice[1]
    assert "–" in str(dataclasses.replace(emulated, speeds=[Speed("float32"), Speed("bf16", problem="no")]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_command_prints_what_it_measured(tmp_path: Path) -> None:
    """Needs a C++ compiler for torch.compile; without one, the command says so."""
    answer = json.loads(call("doctor", "--device", "cpu", "--json", cwd=tmp_path)[0])
    assert [speed["name"] for speed in answer["speeds"]] == ["float32", "bf16", "torch.compile"]
    assert len(answer["advice"]) >= 2
