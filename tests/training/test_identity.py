"""A saved training goes on as itself, or not at all."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from excite.data import Split
from excite.data.augment import crop_flip
from excite.errors import InputError, InterruptedRunError
from excite.lipschitz.online import OnlineRate
from excite.objectives import Objective, Standard, Trades, standard_loss
from excite.schedules import constant, exponential, step
from excite.trace import Recorder
from excite.training import TrainingHistory, train

Make = Callable[..., Optimizer]


def run(
    folder: Path,
    *,
    rate: float = 0.01,
    make: Make = SGD,
    objective: Objective = standard_loss,
    images: int = 64,
    record: bool = False,
    online: bool = False,
    **given: Any,
) -> tuple[Tensor, TrainingHistory]:
    """A linear classifier of the first pixel, always from zero; what it has learned, and its history."""
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (images, 1, 4, 4), dtype=torch.uint8)
    split = Split(pixels, (pixels[:, 0, 0, 0] > 127).long())
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = make(model.parameters(), lr=rate)
    given = {"epochs": 2, "batch_size": 16} | given
    if record:
        given["recorder"] = Recorder(model, optimizer)
    if online:
        given["online"] = OnlineRate(model, optimizer, steps=40, rung=4)
    schedule = given.pop("schedule", constant(rate))
    history = train(model, split, objective, optimizer, schedule, folder=folder, **given)
    return model.get_parameter("1.weight").detach(), history


def with_momentum(parameters: Any, lr: float) -> Optimizer:
    return SGD(parameters, lr=lr, momentum=0.9)


def written_elsewhere(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return standard_loss(model, x, y)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"seed": 1}, "seed"),
        ({"rate": 0.3}, "rate"),
        ({"batch_size": 8}, "batch_size"),
        ({"steps": 2}, "steps_per_epoch"),
        ({"images": 60}, "images"),
        ({"objective": Standard()}, "objective"),
        ({"objective": written_elsewhere}, "objective"),
        ({"augment": crop_flip}, "augment"),
        ({"schedule": exponential(0.01, decay=0.5)}, "rate of epoch 2"),
        ({"make": Adam}, "optimizer"),
        ({"make": with_momentum}, "optimizer.momentum"),
        ({"record": True}, "recorder"),
        ({"online": True}, "online"),
        ({"epochs": 1}, "epochs=1"),
        ({"seed": 1, "rate": 0.3}, "seed"),
    ],
)
def test_another_training_is_refused_with_the_cure(tmp_path: Path, other: dict[str, Any], difference: str) -> None:
    run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=difference):
        run(tmp_path, **other)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_another_option_of_the_objective_is_refused(tmp_path: Path) -> None:
    run(tmp_path, objective=Trades(beta=1.0, steps=1), epochs=1)
    with pytest.raises(InputError, match=r"objective\.beta"):
        run(tmp_path, objective=Trades(beta=6.0, steps=1), epochs=1)


def test_an_epoch_that_is_begun_counts(tmp_path: Path) -> None:
    def stop(done: int, _: int) -> None:
        if done == 7:  # of 8
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError):
        run(tmp_path, on_progress=stop)
    with pytest.raises(InputError, match="epochs=2"):
        run(tmp_path, epochs=1)
    assert len(run(tmp_path)[1].epochs) == 2


def test_more_epochs_and_what_does_not_matter_go_on(tmp_path: Path) -> None:
    run(tmp_path, epochs=1)

    def made(parameters: Any, lr: float) -> Optimizer:
        return SGD(parameters, lr=lr, foreach=False)

    def on_the_spot(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return standard_loss(model, x, y)

    weights, history = run(tmp_path, epochs=3, make=made, steps=100, objective=on_the_spot)
    assert len(history.epochs) == 3
    assert torch.equal(weights, run(tmp_path / "whole", epochs=3)[0])


def test_a_schedule_may_change_what_is_to_come_and_nothing_else(tmp_path: Path) -> None:
    """Stopped in its third epoch of four: that one is begun, the fourth is not."""

    def stop(done: int, _: int) -> None:
        if done == 11:  # of 16
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError):
        run(tmp_path, epochs=4, on_progress=stop)
    with pytest.raises(InputError, match="rate of epoch 3"):
        run(tmp_path, epochs=4, schedule=step(0.01, milestones=(2,)))
    dropping: dict[str, Any] = {"epochs": 4, "schedule": step(0.01, milestones=(3,))}
    weights, history = run(tmp_path, **dropping)
    assert [metrics.rate for metrics in history.epochs] == pytest.approx([0.01, 0.01, 0.01, 0.001])
    assert torch.equal(weights, run(tmp_path / "whole", **dropping)[0])


class Counting(SGD):
    """Counts its steps among its options, as some optimizers do."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.defaults["k"] = 0
        for group in self.param_groups:
            group["k"] = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            group["k"] += 1


def test_an_optimizer_that_counts_its_steps_resumes(tmp_path: Path) -> None:
    for epochs in (1, 2, 3):
        assert len(run(tmp_path, epochs=epochs, make=Counting)[1].epochs) == epochs
