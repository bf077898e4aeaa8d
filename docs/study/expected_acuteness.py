"""Predicted against counted shares of acute epochs and steps; the design is docs/lab/batch-size-in-expectation.md.

python docs/study/expected_acuteness.py count RUNS --out steps.csv    # trains once more, keeping all parameters
python docs/study/expected_acuteness.py compare RUNS --steps steps.csv
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from excite.data.batches import epoch_batches, steps_per_epoch
from excite.evaluation.result import Accuracy
from excite.excitation import acuteness, expected_acuteness
from excite.files import write_text
from excite.randomness import step_generators
from excite.runs.assemble import assemble
from excite.runs.folder import ArmFolder, RunFolder, collect
from excite.sweeps import epoch_images
from excite.trace import Trace
from excite.training import descend

Floats = NDArray[np.float64]
STEPS = ("batch_size", "rate", "acute", "steps")


def trained(runs: Sequence[RunFolder]) -> list[tuple[RunFolder, ArmFolder]]:
    return [(run, arm) for run in runs for arm in run.arms if arm.trace() is not None]


def count_steps(run: RunFolder, arm: ArmFolder) -> tuple[int, int]:
    """Train the arm again and count single steps with uᵀq > 0 in all epochs but the first and the last."""
    parts = assemble(run.experiment)
    if parts.steps_per_epoch == 1:  # the trace has every step
        holds = acuteness(run.needed_trace(arm.name)).holds
        return int(holds.sum()), len(holds)
    training, seed = parts.experiment.training, parts.experiment.seed
    model = parts.new_model().to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = parts.new_optimizer(model, arm.rate)
    path = []
    for epoch in range(training.epochs):
        optimizer.param_groups[0]["lr"] = arm.rate * parts.schedule(epoch) / parts.schedule(0)
        batches = epoch_batches(
            parts.training_set, batch_size=training.batch_size, seed=seed, epoch=epoch, augment=parts.augment
        )
        generators = step_generators(seed, epoch)
        for _ in descend(model, batches, parts.objective, optimizer, generators=generators):
            path.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    length, goal = parts.steps_per_epoch, path[-1]
    judged = range(length - 1, len(path) - length - 1)  # from the end of the first epoch to that of the last but one
    products = [float((path[k] - path[k + 1]).double() @ (path[k + 1] - goal).double()) for k in judged]
    return sum(product > 0 for product in products), len(products)


def epoch_is_acute(trace: Trace, batch_size: int, images: int) -> NDArray[np.bool_]:
    """P2 at each moment: an epoch of batches of this size, with the gradient that the moment has."""
    squared_gradient, noise, gradient_carry, squared_carry, gradient_ahead, carry_ahead = trace.batch_statistics[:-2].T
    rate, momentum = trace.learning_rates[1:-1], trace.facts["sgd"]["momentum"]
    steps = steps_per_epoch(images, batch_size)
    gains = (1 - momentum ** np.arange(1, steps + 1)) / (1 - momentum)
    gain, spread = gains.sum(), np.square(gains - gains.mean()).sum()
    kept = (1 - momentum**steps) / (1 - momentum)
    squared = gain**2 * squared_gradient + 2 * gain * kept * gradient_carry + kept**2 * squared_carry
    acute: NDArray[np.bool_] = (
        rate * (squared + spread * noise / batch_size) < gain * gradient_ahead + kept * carry_ahead
    )
    return acute


def compare(runs: Sequence[RunFolder], steps: dict[tuple[int, float], tuple[int, int]]) -> None:
    """One row per training: counted and predicted shares, then those that it predicts for all batch sizes."""
    sizes = sorted({run.experiment.training.batch_size for run in runs})
    pairs = sorted(trained(runs), key=lambda pair: (pair[1].rate, pair[0].experiment.training.batch_size))
    weakest = 0
    for run, arm in pairs:
        rate, size = arm.rate, run.experiment.training.batch_size
        trace, images = run.needed_trace(arm.name), epoch_images(run.experiment)
        counted, expected = acuteness(trace), expected_acuteness(trace)
        epochs = Accuracy(int(counted.holds.sum()), len(counted.holds))
        low, high = epochs.interval
        first = [f"{(expected.batch_sizes < other).mean():.0%}" for other in sizes]
        second = [f"{epoch_is_acute(trace, other, images).mean():.0%}" for other in sizes]
        acute_steps, n_steps = steps[size, rate]
        weakest += int(counted.cosines.argmin() == (expected.largest_rates / expected.rate).argmin())
        cells = [
            f"{rate:.3g}",
            f"{size:,}",
            f"{epochs.correct} of {epochs.total} ({low:.0%} to {high:.0%})",
            second[sizes.index(size)],
            f"{acute_steps:,} of {n_steps:,} ({acute_steps / n_steps:.0%})",
            first[sizes.index(size)],
            ", ".join(second),
            ", ".join(first),
            f"{expected.batch_size_for(0.5)}, {expected.batch_size_for()}",
        ]
        print(f"| {' | '.join(cells)} |")
    print(f"In {weakest} of {len(pairs)} the weakest epoch is the one with the least room for the rate.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["count", "compare"])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = collect([arguments.runs])
    if arguments.what == "count":
        lines = [",".join(STEPS)]
        for counted_run, arm in trained(found):
            acute, total = count_steps(counted_run, arm)
            lines.append(f"{counted_run.experiment.training.batch_size},{arm.rate!r},{acute},{total}")
            print(lines[-1], flush=True)
        write_text(arguments.out, "\n".join(lines) + "\n")
    else:
        with arguments.steps.open(encoding="utf-8") as file:
            table = {
                (int(row["batch_size"]), float(row["rate"])): (int(row["acute"]), int(row["steps"]))
                for row in csv.DictReader(file)
            }
        compare(found, table)
