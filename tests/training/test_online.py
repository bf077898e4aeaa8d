"""A training that finds its rate on the way leaves out what it rolled back, and resumes bit-identical."""

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

from excite import data, schedules
from excite.errors import InterruptedRunError
from excite.lipschitz.online import OnlineRate
from excite.objectives import standard_loss
from excite.training import train

EPOCHS, BATCH, STEPS = 6, 16, 20


class Run:
    """Softmax regression on a few images; a rung is 5 steps, so that the climb breaks within three epochs."""

    def __init__(self, rate: float = 0.1) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        self.optimizer = SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self.online = OnlineRate(self.model, self.optimizer, steps=EPOCHS * STEPS, rung=5)
        self.split = data.load("mnist-sample").train.subset(BATCH * STEPS, seed=0)

    def train(self, folder: Path | None = None, stop_at: int | None = None) -> list[float]:
        def on_progress(done: int, _: int) -> None:
            if done == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

        schedule = self.online.follow(schedules.step(0.1, milestones=(4,)))
        history = train(
            self.model,
            self.split,
            standard_loss,
            self.optimizer,
            schedule,
            epochs=EPOCHS,
            batch_size=BATCH,
            folder=folder,
            online=self.online,
            on_progress=on_progress,
        )
        return [metrics.loss for metrics in history.epochs]


def test_it_settles_and_the_schedule_decays_from_there() -> None:
    run = Run()
    losses = run.train()
    assert run.online.settled
    assert run.online.ladder.breaks
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(run.online.rate / 10)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("broken", [False, True], ids=["before the first break", "within a rung after a break"])
def test_stopped_for_real_it_goes_on_bit_identical(tmp_path: Path, broken: bool) -> None:
    whole = Run()
    losses = whole.train(tmp_path / "whole")
    stop_at = 53 if broken else 13
    first = Run()
    with pytest.raises(InterruptedRunError):
        first.train(tmp_path / "stopped", stop_at)
    assert bool(first.online.ladder.breaks) is broken
    assert first.online.ladder.losses  # in the middle of a rung
    second = Run()
    assert second.train(tmp_path / "stopped") == losses
    assert second.online.ladder == whole.online.ladder
    for one, other in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_blow_up_is_rolled_back_and_not_in_the_epochs_loss(tmp_path: Path) -> None:
    run = Run(rate=1e5)
    losses = run.train(tmp_path)
    assert run.online.ladder.breaks[0] == 1e5
    assert all(loss < 100 * 2.4 for loss in losses)
    assert all(bool(parameter.isfinite().all()) for parameter in run.model.parameters())
