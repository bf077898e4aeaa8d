"""Whole trainings with OnlineRate: where the rate settles, and how far down the loss ends.

OMP_NUM_THREADS=1 python docs/lab/online/measure.py TRACES NETWORK DRAWS AS_FAR…

TRACES holds the losses of trainings at fixed rates, as docs/lab/online/fixed_rates.py writes them. Each training begins
at a fifth of the network's starting rate. AS_FAR is the share of the best rung's way down from the initial loss below
which a rung is rolled back.
"""

import math
import statistics
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[1] / "certified"))
from networks import TUNING, Network

from excite.lipschitz import online as module
from excite.lipschitz.online import OnlineRate
from excite.randomness import derive_seed

MULTIPLES = (1.0, 2.0)
CONVERGED = 0.9  # of the way down of the median training at the best fixed rate


def way_down(losses: list[float], steps: int) -> float:
    """From the initial loss to the mean loss of the last tenth of the steps; -inf for a training that ended early."""
    tail = losses[-max(steps // 10, 1) :]
    return losses[0] - statistics.fmean(tail) if math.isfinite(losses[-1]) else -math.inf


def best_fixed(folder: Path, network: Network) -> tuple[float, float, int]:
    """The fixed rate whose median training goes furthest down, how far that is, and how many trainings it had."""
    ways: dict[int, list[float]] = {}
    for file in folder.glob("*_*.npy"):
        losses = [float(loss) for loss in np.load(file)]
        ways.setdefault(int(file.stem.split("_")[0]), []).append(way_down(losses, network.steps))
    best = max(ways, key=lambda k: statistics.median(ways[k]))
    return network.start * math.sqrt(2) ** best, statistics.median(ways[best]), len(ways[best])


def train(network: Network, draw: int, multiple: float) -> tuple[OnlineRate, list[float]]:
    """One training, and the losses of the steps that were not rolled back."""
    torch.manual_seed(derive_seed(20261118, draw))
    x, y = network.data()
    model = network.model().train()
    if x.ndim == 4:
        model = model.to(memory_format=torch.channels_last)
    optimizer = network.optimizer(list(model.parameters()), network.start / 5)
    online = OnlineRate(model, optimizer, steps=network.steps, multiple=multiple)
    schedule = online.follow(network.schedule)
    rng = torch.Generator().manual_seed(derive_seed(7, draw))
    losses: list[float] = []
    taken = 0
    while True:
        order = torch.randperm(len(y), generator=rng)
        for batch in order[: len(y) // network.batch * network.batch].split(network.batch):
            for group in optimizer.param_groups:
                group["lr"] = schedule(taken / network.steps)
            optimizer.zero_grad()
            loss = cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            lost = online.after_step(loss)
            del losses[len(losses) - lost :]
            taken += 1
            if taken == network.steps:
                return online, losses


def main(traces: str, name: str, draws: str, *shares: str) -> None:
    torch.set_num_threads(1)
    network = TUNING[name]
    best_rate, furthest, trainings = best_fixed(Path(traces) / name, network)
    print(f"{name}: best fixed rate {best_rate:.3g}, {furthest:.4f} down (median of {trainings})")
    for share in shares:
        module.AS_FAR = float(share)
        for multiple in MULTIPLES:
            for draw in range(int(draws)):
                online, losses = train(network, draw, multiple)
                reached = way_down(losses, network.steps) / furthest
                ladder = online.ladder
                print(
                    f"{name} as_far {share} multiple {multiple:g} draw {draw}: "
                    f"held {max(ladder.good, default=math.nan):.3g}, rate {online.rate:.3g}, "
                    f"{len(ladder.breaks)} breaks, {ladder.lost} of {network.steps} steps rolled back, "
                    f"{reached:.3f} of the way{'' if reached >= CONVERGED else ', NOT CONVERGED'}",
                    flush=True,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
