"""What the tests of distributed training run, in one process or, under torchrun, in several: python … TASK FOLDER."""

import itertools
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from excite import data, models, schedules
from excite.cli import main as excite_main
from excite.data.augment import crop_flip
from excite.data.batches import epoch_batches
from excite.lipschitz.online import OnlineRate
from excite.objectives import Objective, Trades, standard_loss
from excite.randomness import seed_all
from excite.schedules import constant
from excite.trace import Recorder
from excite.training import descend, train
from excite.training.distributed import Ranks, launched

DIGITS = data.load("mnist-sample").train


def gradients(folder: Path, ranks: Ranks) -> None:
    """The gradient of every step, at the same weights; the last batch has 5 images or 1."""
    torch.manual_seed(ranks.rank)  # the first one's weights count
    model = models.create("lenet5", input_shape=(1, 28, 28))
    ranks = ranks.training(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    found: dict[str, Tensor] = {}
    for n in (69, 65):
        batches = epoch_batches(
            DIGITS.subset(n), batch_size=32, seed=0, epoch=0, augment=crop_flip, rank=ranks.rank, world=ranks.world
        )
        for step, loss in enumerate(descend(model, batches, standard_loss, optimizer, ranks=ranks)):
            gradient = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
            found[f"{n} images, step {step}"] = torch.cat([*gradient, ranks.average(loss).view(1)])
    if ranks.first:
        folder.mkdir(parents=True)
        safetensors.torch.save_file(found, folder / "gradients.safetensors")


def recorded(
    folder: Path,
    ranks: Ranks,
    *,
    objective: Objective = standard_loss,
    dropout: float = 0.0,
    batch_norm: bool = False,
    stop_at: int = 0,
) -> None:
    """Three epochs of five steps, the last of them ragged."""
    seed_all(0, torch.device("cpu"))
    norm = nn.BatchNorm1d(30) if batch_norm else nn.Identity()
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 30), norm, nn.Tanh(), nn.Dropout(dropout), nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    digits = DIGITS.subset(301)
    recorder = Recorder(
        model,
        optimizer,
        probe=(digits.floats()[:64], digits.labels[:64]),
        slopes_per_epoch=2,
        steps_per_epoch=5,
        batch_size=64,
        curvature_every=1,
        folder=folder / "moments",
    )

    def stop_the_last_one(done: int, _total: int) -> None:
        if done == stop_at and ranks.rank == ranks.world - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    train(
        model,
        digits,
        objective,
        optimizer,
        constant(0.1),
        epochs=3,
        batch_size=64,
        augment=crop_flip,
        folder=folder,
        recorder=recorder,
        after_epoch=lambda _: {"rank": ranks.rank},
        on_progress=stop_the_last_one,
        ranks=ranks,
    )
    if ranks.first:
        recorder.trace.save(folder / "trace.safetensors")


def online(
    folder: Path,
    ranks: Ranks,
    *,
    dropout: float = 0.0,
    batch_norm: bool = False,
    broken_step: int = 0,
    stop_at: int = 0,
) -> None:
    """Eight epochs of ten steps at a rate that is found on the way; the last process may see a loss that is NaN."""
    losses = itertools.count(1)

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        broken = next(losses) == broken_step and ranks.rank == ranks.world - 1
        return standard_loss(model, x, y) * (float("nan") if broken else 1.0)

    seed_all(ranks.rank, torch.device("cpu"))  # the first one's weights count
    norm = nn.BatchNorm1d(30) if batch_norm else nn.Identity()
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 30), norm, nn.Tanh(), nn.Dropout(dropout), nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rate = OnlineRate(model, optimizer, steps=80, rung=5)

    def stop_the_last_one(done: int, _total: int) -> None:
        if done == stop_at and ranks.rank == ranks.world - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    train(
        model,
        DIGITS.subset(637),
        objective,
        optimizer,
        rate.follow(schedules.step(0.1, milestones=(6,))),
        epochs=8,
        batch_size=64,
        folder=folder,
        online=rate,
        on_progress=stop_the_last_one,
        ranks=ranks,
    )
    ladders = ranks.gather(asdict(rate.ladder))
    if ranks.first:
        (folder / "ladders.json").write_text(json.dumps(ladders), encoding="utf-8")


def diverging(folder: Path, ranks: Ranks) -> None:
    """The last process alone sees a loss that is not a number."""

    def broken(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return standard_loss(model, x, y) * (float("nan") if ranks.rank == ranks.world - 1 else 1.0)

    model = models.create("lenet5", input_shape=(1, 28, 28))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, DIGITS, broken, optimizer, constant(0.1), epochs=1, batch_size=64, folder=folder, ranks=ranks)


def work(task: str, folder: Path) -> None:
    with launched() as ranks:
        if task == "gradients":
            gradients(folder, ranks)
        elif task == "recorded":
            recorded(folder, ranks)
        elif task == "random":
            recorded(folder, ranks, objective=Trades(steps=2), dropout=0.5, batch_norm=True, stop_at=int(sys.argv[3]))
        elif task == "online":
            online(folder, ranks, broken_step=3)
        elif task == "random online":
            online(folder, ranks, dropout=0.5, batch_norm=True, stop_at=int(sys.argv[3]))
        elif task == "diverging":
            diverging(folder, ranks)


def main() -> None:
    try:
        if sys.argv[1] == "excite":
            excite_main(sys.argv[2:])
        else:
            work(sys.argv[1], Path(sys.argv[2]))
    finally:
        threads = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
        left = [name for name in threads if "gloo" in name]
        assert not left, f"threads that may abort this process when it ends: {left}"


if __name__ == "__main__":
    main()
