"""What training measured, one line of metrics.jsonl per epoch."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from excite.errors import CorruptFileError
from excite.files import write_text

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class EpochMetrics:
    """`epoch` counts from 1, `loss` is the mean over the epoch's batches, `extra` what `after_epoch` measured."""

    epoch: int
    rate: float
    loss: float
    seconds: float
    extra: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        extra = "".join(f", {name} {value:.4g}" for name, value in self.extra.items())
        return f"epoch {self.epoch}: loss {self.loss:.4g}{extra}, rate {self.rate:.4g}, {self.seconds:.1f} s"


@dataclass(frozen=True)
class Training:
    """What a finished training leaves behind, beside the trained model."""

    epochs: tuple[EpochMetrics, ...]
    initial_loss: float

    @property
    def seconds(self) -> float:
        return sum(metrics.seconds for metrics in self.epochs)

    def __str__(self) -> str:
        last = self.epochs[-1]
        return f"{last.epoch} epochs in {self.seconds:.1f} s: loss {self.initial_loss:.3g} to {last.loss:.3g}"


def append(folder: Path, metrics: EpochMetrics) -> None:
    with (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(metrics)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> list[EpochMetrics]:
    path = folder / METRICS
    if not path.exists():
        return []
    try:
        return [EpochMetrics(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (json.JSONDecodeError, TypeError) as error:
        raise CorruptFileError(f"{path} is damaged ({error}). Delete {folder} to train again.") from error


def rewind(folder: Path, epochs: int) -> list[EpochMetrics]:
    """Drop the lines a killed run wrote after its last checkpoint; return those that stay."""
    path = folder / METRICS
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    write_text(path, "".join(lines[:epochs]))
    return read(folder)
