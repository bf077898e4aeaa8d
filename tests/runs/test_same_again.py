"""A run that was stopped between two stages ends as one that was not: every stage follows from the experiment alone."""

import contextlib
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from excite import models
from excite.errors import InterruptedRunError
from excite.runs import load
from excite.runs.circumstances import STAGES
from excite.runs.procedure import Run
from excite.runs.verify import verify

MEASURED = {"seconds", "sha256"}  # another time, and so another hash of what holds it


class Silent:
    def say(self, text: str) -> None: ...

    @contextlib.contextmanager
    def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda _done, _total: None


class Dropping(nn.Sequential):
    """A linear classifier that drops half of its pixels."""

    def __init__(self, *, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        pixels = input_shape[0] * input_shape[1] * input_shape[2]
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(pixels, num_classes))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in MEASURED}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a run, but for the times it took."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == STAGES:
            continue  # when and where it was, and in which order
        if path.suffix in (".json", ".jsonl"):
            found[name] = [without_times(json.loads(text)) for text in _documents(path)]
        elif path.suffix == ".safetensors":
            tensors = safetensors.torch.load_file(path)  # the order of the metadata is by chance
            found[name] = {key: (value.shape, value.numpy().tobytes()) for key, value in tensors.items()}
        elif path.is_file() and not path.name.endswith(".lock"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _documents(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return text.splitlines() if path.suffix == ".jsonl" else [text]


@pytest.mark.parametrize("objective", ['{kind="trades",steps=2}', '{kind="pgd_at",steps=2,random_start=true}'])
def test_stopped_after_the_baseline_and_resumed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    monkeypatch.setitem(models.MODELS, "dropping", Dropping)
    changes = [f"training.objective={objective}", 'model={name="dropping"}', "training.steps=4", "lipschitz.steps=10"]
    experiment = load(str(tiny), overrides=changes)
    torch.manual_seed(1)
    Run(tmp_path / "whole", experiment, console=Silent()).all(["baseline", "poe"])
    Run(tmp_path / "stopped", experiment, console=Silent()).all(["baseline"])
    torch.manual_seed(2)  # another process
    Run(tmp_path / "stopped", experiment, console=Silent()).all(["baseline", "poe"])
    whole, resumed = contents(tmp_path / "whole"), contents(tmp_path / "stopped")
    assert "estimate.json" in whole
    assert whole == resumed


class Stopping(Silent):
    """Stops the training for real, as a person does, at its step `at`."""

    def __init__(self, at: int) -> None:
        self.at = at

    @contextlib.contextmanager
    def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
        def on_step(done: int, _: int) -> None:
            if done == self.at and "training" in title:
                os.kill(os.getpid(), signal.SIGINT)

        yield on_step


def test_a_rate_found_on_the_way_is_found_again_after_a_stop(tiny: Path, tmp_path: Path) -> None:
    changes = ["training.epochs=9", "training.schedule={kind='constant', rate=0.5}", "data.test_examples=10"]
    experiment = load(str(tiny), overrides=changes)
    Run(tmp_path / "whole", experiment, console=Silent()).all(["online"])
    with pytest.raises(InterruptedRunError):
        Run(tmp_path / "stopped", experiment, console=Stopping(at=67)).all(["online"])
    run = Run(tmp_path / "stopped", experiment, console=Silent())
    run.all(["online"])
    assert run.files.arm("online").rate != pytest.approx(0.5 / 5)  # it climbed
    assert not verify(tmp_path / "stopped").problems
    assert contents(tmp_path / "whole") == contents(tmp_path / "stopped")
