"""How accurate is the time that `excite list` predicts for a run? Prints predicted over measured time.

    python benchmarks/costs.py

The prediction is repeated before, between and after the arms, and the median counts, because other work on the machine
changes its speed.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch

from excite.console import Console
from excite.runs import load
from excite.runs.costs import costs
from excite.runs.procedure import Run


def estimated_over_true(folder: Path) -> float:
    experiment = load("mnist-sample", overrides=["lipschitz.steps=120", "training.epochs=6"])

    def estimate() -> float:
        return costs({"": experiment}, torch.device("cpu"))[""].seconds

    estimates, started = [estimate()], time.perf_counter()
    run = Run(folder, experiment, console=Console(quiet=True))
    for arm in experiment.arms:
        run.all([arm])
        estimates.append(estimate())
    return statistics.median(estimates) / (time.perf_counter() - started)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(f"estimated over true: {estimated_over_true(Path(temporary) / 'run'):.2f}")
