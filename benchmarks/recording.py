"""What does recording cost? Time as a share of training, and bytes on disk while training and afterwards.

    python benchmarks/recording.py time           one step without and with a recorder, and one end of an epoch
    python benchmarks/recording.py disk           164 epochs, one step of 8 images each: sizes do not depend on images

Both take a MODEL, by default ResNet-20.

Random images with CIFAR-10 shapes, SGD with momentum, a standard step as in our loop. CPU time of one thread, because
other work on the machine affects it little. Every round measures all cases in turn; the median of the rounds counts.
"""

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from excite import models
from excite.trace import Recorder

EPOCH = {"batches of 128, 8 slopes per epoch": (128, 391, 8), "batches of 5,000, 2 slopes per epoch": (5000, 10, 2)}


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


class Case:
    """A model with its optimizer and, unless it is the plain case, a recorder."""

    def __init__(self, name: str, batch: int, folder: Path, slopes: int | None) -> None:
        self.model = models.create(name).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.x = torch.rand(batch, 3, 32, 32).to(memory_format=torch.channels_last)
        self.y = torch.arange(batch) % 10
        self.recorder = None
        if slopes is not None:
            place = folder / str(slopes)
            self.recorder = Recorder(
                self.model, self.optimizer, slopes_per_epoch=slopes, steps_per_epoch=1, folder=place
            )

    def loss(self) -> Tensor:
        return cross_entropy(self.model(self.x), self.y)

    def step(self) -> None:
        self.optimizer.zero_grad()
        torch.autograd.backward(self.loss())
        self.optimizer.step()
        if self.recorder:
            self.recorder.after_step(self.loss)


def measure_time(name: str, rounds: int, batch: int) -> None:
    times: dict[str, list[float]] = {"plain": [], "mean": [], "slope": [], "record": []}
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            case: Case(name, batch, Path(folder), slopes)
            for case, slopes in (("plain", None), ("mean", 0), ("slope", 1))
        }
        for number in range(rounds + 2):  # the first two rounds warm up
            taken = {key: seconds(case.step) for key, case in cases.items()}
            taken["record"], _ = (seconds(case.recorder.record) for case in cases.values() if case.recorder)
            for key, value in taken.items() if number > 1 else ():
                times[key].append(value)
    plain, mean, slope, record = (statistics.median(values) for values in times.values())
    print(f"a step {plain:.3f} s; with the epoch's mean gradient {mean:.3f} s; with a slope {slope:.3f} s")
    for epoch, (size, steps, slopes) in EPOCH.items():
        scale = size / batch
        extra = steps * max(0.0, mean - plain) + slopes * max(0.0, slope - mean) * scale + record
        print(f"{name}, {epoch}: recording takes {extra / (steps * plain * scale):.1%} of training without it")


def measure_disk(name: str, epochs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        case = Case(name, 8, Path(folder), 0)
        assert case.recorder is not None
        taken = 0.0
        for epoch in range(1, epochs + 1):
            case.step()
            taken += seconds(case.recorder.record)
            if epoch in (1, 2, 4, epochs):
                held = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
                print(f"{name}, after epoch {epoch}: {held / 1e6:.1f} MB while training")
        case.recorder.trace.save(Path(folder) / "trace.safetensors")
        size = (Path(folder) / "trace.safetensors").stat().st_size
        print(
            f"{name}, afterwards: {size / 1e3:.0f} kB; {taken / epochs:.3f} s per end of an epoch, distances included"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["time", "disk"])
    parser.add_argument("model", nargs="?", default="resnet20")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=164)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("excite").setLevel(logging.ERROR)  # it warns of epochs of a single step
    if arguments.what == "time":
        measure_time(arguments.model, arguments.rounds, arguments.batch)
    else:
        measure_disk(arguments.model, arguments.epochs)
