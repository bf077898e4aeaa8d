"""Count the trainings that are called diverged: 200 that hardly move, and 40 at rates that are too large.

OMP_NUM_THREADS=1 python docs/lab/frozen/measure.py

The old rule compared the mean loss with the loss of the first batch alone. The new rule measures the first batches
again whenever the old rule objects, so one run of each training tells what both rules do.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

import excite
from excite.errors import DivergedError
from excite.randomness import derive_seed
from excite.training import loop

DATA = {"lenet5": "mnist-sample", "resnet8": "cifar10", "resnet20": "cifar10"}
BATCHES = (16, 32, 64, 128, 250, 500, 1000)
RATES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
Training = tuple[str, float, int, int]  # network, rate, batch size, seed


def slow() -> Iterator[Training]:
    for name, count in (("lenet5", 60), ("resnet8", 80), ("resnet20", 60)):
        for seed in range(count):
            yield name, RATES[seed % len(RATES)], BATCHES[seed % len(BATCHES)], seed


def fast() -> Iterator[Training]:
    for seed in range(30):
        yield "lenet5", (0.6, 0.8, 1.2, 2.0, 5.0)[seed % 5], (16, 64, 250)[seed % 3], seed
    for seed in range(10):
        yield "resnet8", (5.0, 10.0, 20.0, 30.0, 100.0)[seed % 5], (16, 64, 128)[seed % 3], seed


@cache
def images(name: str) -> excite.data.Split:
    return excite.data.load(DATA[name]).train


def stopped_in(training: Training, *, epochs: int, images_per_epoch: int) -> tuple[int | None, int | None]:
    """Epoch in which the old rule stops this training, and epoch in which the new rule does."""
    name, rate, batch_size, seed = training
    epoch, old = 1, None
    measure_again = loop._measure_again

    def noted(*args: Any, **options: Any) -> list[float]:
        nonlocal old
        old = old or epoch
        return measure_again(*args, **options)

    def count(_metrics: object) -> None:
        nonlocal epoch
        epoch += 1

    torch.manual_seed(derive_seed(seed, batch_size))
    split = images(name).subset(max(images_per_epoch, batch_size), seed)
    model = excite.models.create(name, input_shape=tuple(split.images.shape[1:]))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    objective, schedule = excite.objectives.Standard(), excite.schedules.constant(rate)
    options = {"epochs": epochs, "batch_size": batch_size, "seed": seed, "on_epoch": count}
    loop._measure_again = noted
    try:
        excite.train(model, split, objective, optimizer, schedule, **options)
    except DivergedError:
        return old or epoch, epoch
    finally:
        loop._measure_again = measure_again
    return old, None


def main() -> None:
    torch.set_num_threads(1)
    for name in DATA:
        chosen = [training for training in slow() if training[0] == name]
        stops = [stopped_in(training, epochs=2, images_per_epoch=256) for training in chosen]
        before, after = (sum(epoch is not None for epoch in epochs) for epochs in zip(*stops, strict=True))
        print(f"slow {name}: {len(stops)} trainings, the old rule stops {before}, the new rule {after}", flush=True)
    for name in ("lenet5", "resnet8"):
        chosen = [training for training in fast() if training[0] == name]
        stops = [stopped_in(training, epochs=6, images_per_epoch=2000) for training in chosen]
        before = [(old, new or math.inf) for old, new in stops if old]
        later = sum(new > old for old, new in before)
        print(f"fast {name}: {len(stops)} trainings, the old rule stops {len(before)}", end="")
        print(f", the new rule stops {later} of them later", flush=True)


if __name__ == "__main__":
    main()
