"""A run that was stopped between two stages ends as one that was not: every stage follows from the experiment alone."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from excite import models
from excite.errors import InterruptedRunError
from excite.runs import load
from excite.runs.procedure import Run
from excite.runs.verify import verify
from tests.contents import contents
from tests.faults.processes import Dropping


class Silent:
    def say(self, text: str) -> None: ...

    @contextlib.contextmanager
    def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda _done, _total: None


@pytest.mark.parametrize(
    "objective",
    ['{kind="trades",steps=2}', pytest.param('{kind="pgd_at",steps=2,random_start=true}', marks=pytest.mark.slow)],
)
def test_stopped_after_the_baseline_and_resumed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    monkeypatch.setitem(models.MODELS, "dropping", Dropping)
    changes = [f"training.objective={objective}", 'model={name="dropping"}', "training.steps=4", "lipschitz.steps=5"]
    changes += ["data.test_examples=10", "record.slopes_per_epoch=2"]
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


def test_stopped_at_its_last_step_an_arm_is_attacked_by_the_next_go_only(tiny: Path, tmp_path: Path) -> None:
    experiment = load(str(tiny), overrides=["data.train_examples=64", "data.test_examples=10"])  # 2 epochs of 2 steps
    Run(tmp_path / "whole", experiment, console=Silent()).all(["baseline"])
    stopped = Run(tmp_path / "stopped", experiment, console=Stopping(at=4))
    with pytest.raises(InterruptedRunError):
        stopped.all(["baseline"])
    assert not stopped.files.arms
    Run(tmp_path / "stopped", experiment, console=Stopping(at=4)).all(["baseline"])  # trains no step any more
    assert contents(tmp_path / "whole") == contents(tmp_path / "stopped")


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
