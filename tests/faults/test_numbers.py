"""A number that is none, anywhere in a training, or a rate far too large: no bad file, no L, no accuracy from it."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite import objectives
from excite.errors import DivergedError, ExciteError
from excite.runs.experiment import from_values
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from tests.faults.conftest import EXPERIMENT

STEPS = 10  # of each training: two epochs of five
LAST = STEPS


@dataclass(frozen=True)
class Breaking:
    """Cross-entropy, with a `value` that is no number in one `place` at step `at`, counted from 1."""

    place: str
    value: float
    at: int
    title: ClassVar[str] = "breaking"
    passes: ClassVar[float] = 3.0
    needs_pseudo_labels: ClassVar[bool] = False
    seen: ClassVar[list[nn.Module]] = []

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        self.seen.append(model)
        place = self.place if len(self.seen) == self.at else ""
        logits = model(x + self.value if place == "data" else x)
        if place == "output":
            logits = logits * torch.tensor([self.value, *[1.0] * (logits.shape[1] - 1)])
        loss = cross_entropy(logits, y)
        if place == "gradient":
            next(model.parameters()).register_hook(lambda gradient: gradient + self.value)  # type: ignore[no-untyped-call]
        return loss * self.value if place == "loss" else loss


class Spoiler:
    """A console that puts the value into the weights when it is told of step `at`."""

    def __init__(self, breaking: Breaking) -> None:
        self._breaking = breaking

    def say(self, text: str) -> None: ...

    @contextlib.contextmanager
    def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
        def on_step(done: int, _total: int) -> None:
            if "training" in title and self._breaking.place == "parameter" and done == self._breaking.at:
                with torch.no_grad():
                    next(self._breaking.seen[-1].parameters()).flatten()[0] = self._breaking.value

        yield on_step


def experiment(**changes: Any) -> dict[str, Any]:
    small: dict[str, Any] = EXPERIMENT | {
        "data": {"name": "mnist-sample", "train_examples": 80, "test_examples": 20},
        "record": {"slopes_per_epoch": 0},
        "arms": ["baseline"],
    }
    training = {**EXPERIMENT["training"], "batch_size": 16, **changes.pop("training", {})}
    return small | {"training": training} | changes


def sound(run: Path) -> bool:
    """Whether everything in the weights that were kept is a number."""
    (kept,) = (run / "baseline").glob("weights-*.safetensors")
    return all(bool(tensor.isfinite().all()) for tensor in safetensors.torch.load_file(kept).values())


def break_at(place: str, value: float, at: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    breaking = Breaking(place, value, at)
    Breaking.seen.clear()
    patch.setitem(objectives.OBJECTIVES, "breaking", lambda: breaking)
    values = experiment(training={"objective": "breaking"}, lipschitz={"method": "local"})
    run = Run(folder, from_values(values), console=Spoiler(breaking), device="cpu")
    run.all()
    case = f"{value} in the {place} at step {at}"
    (arm,) = RunFolder(folder).arms
    assert "diverged" in str(arm.problem), case
    assert arm.evaluation is None, case
    assert arm.trace() is None, case
    assert len(arm.epochs) == (at - 1) // 5, case
    assert sound(folder), case
    with pytest.raises(ExciteError):
        run.estimate()
    assert run.files.estimate is None, case


@pytest.mark.parametrize("steps", [(1, LAST), pytest.param(tuple(range(1, LAST + 1)), marks=pytest.mark.slow)])
def test_no_number(steps: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        (place, value, at)
        for place in ("data", "loss", "gradient", "parameter", "output")
        for value in (math.nan, math.inf)
        for at in steps
    ]
    for number, (place, value, at) in enumerate(cases):
        break_at(place, value, at, tmp_path / str(number), monkeypatch)
    print(f"{len(cases)} of {len(cases)} trainings stopped: only sound weights kept, no L, no accuracy")


@pytest.mark.parametrize("objective", ["standard", {"kind": "trades", "eps": 0.1, "step": 0.05, "steps": 2}])
def test_a_hundred_times_the_rate(objective: Any, tmp_path: Path) -> None:
    """1/L of a hundredth of an L at which it trains: L ≈ 10, so η = 10."""
    values = experiment(
        training={"objective": objective}, lipschitz={"method": "stated", "constant": 0.1}, arms=["baseline", "poe"]
    )
    run = Run(tmp_path, from_values(values), console=Spoiler(Breaking("", 0.0, 0)), device="cpu").all()
    baseline, poe = run.arms
    assert baseline.evaluation
    assert "diverged" in str(poe.problem)
    assert poe.evaluation is None
    with pytest.raises(DivergedError):
        Run.open(tmp_path, console=Spoiler(Breaking("", 0.0, 0)), device="cpu").train("poe")
