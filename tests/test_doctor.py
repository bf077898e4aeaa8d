"""`excite doctor` says what the machine is, measures, and draws its conclusions from what it measured."""

import json
from pathlib import Path

import pytest
import torch

from excite.doctor import Diagnosis, diagnose
from excite.runs.records import Circumstances
from tests.command_line import call

CPU = torch.device("cpu")


def advice(name: str, speed: tuple[float, float], *, bfloat16: bool = True) -> list[str]:
    where = Circumstances("a machine", "cpu", 1, {"torch": "2"})
    return Diagnosis(where, bfloat16, ["cpu"], {"float32": (100.0, 50.0), name: speed}, {}).advice


def test_it_measures_without_drawing_random_numbers() -> None:
    before = torch.get_rng_state()
    told: list[tuple[int, int]] = []
    found = diagnose(CPU, compile=False, rounds=2, on_progress=lambda *at: told.append(at))
    assert torch.equal(torch.get_rng_state(), before)
    assert told == [(1, 2), (2, 2)]
    assert [*found.speeds] == ["float32", "bf16"]
    assert all(0 < time < float("inf") for times in found.speeds.values() for time in times)
    assert not found.problems
    assert torch.__version__.startswith(found.circumstances.versions["torch"])
    assert json.loads(json.dumps(found.to_json()))["advice"] == found.advice


def test_advice_follows_from_the_speeds() -> None:
    (faster,) = advice("bf16", (50.0, 20.0))
    assert all(words in faster for words in ("bf16 is worth using to train and attack", "2.00×", "2.50×"))
    (slower,) = advice("torch.compile", (99.0, 50.0))
    assert "torch.compile does not help" in slower
    (mixed,) = advice("torch.compile", (110.0, 40.0))
    assert "worth using to attack here" in mixed
    emulated = advice("bf16", (5000.0, 2000.0), bfloat16=False)
    assert "does not help" in emulated[0]
    assert "many times slower" in emulated[1]


def test_what_does_not_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(torch, "compile", broken)
    found = diagnose(CPU, rounds=1)
    assert found.problems == {"torch.compile": "no compiler"}
    assert "no compiler" in str(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_command_prints_what_it_measured(tmp_path: Path) -> None:
    """Needs a C++ compiler for torch.compile; without one, the command says so."""
    answer = json.loads(call("doctor", "--device", "cpu", "--json", cwd=tmp_path)[0])
    assert {*answer["speeds"], *answer["problems"]} == {"float32", "bf16", "torch.compile"}
    assert len(answer["advice"]) >= 2
