"""The training loop for every objective, with checkpoints to resume from, and the metrics of each epoch."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from excite.errors import CorruptFileError
from excite.files import append_line, expected, read_lines, write_bytes
from excite.lazy import lazily

if TYPE_CHECKING:
    from excite.training.loop import descend, keep_freed_memory, train

__all__ = ["EpochMetrics", "TrainingHistory", "descend", "keep_freed_memory", "train"]

__getattr__ = lazily(__name__, {"descend": "loop", "keep_freed_memory": "loop", "train": "loop"})

METRICS = "metrics.jsonl"
CHECKPOINT, WEIGHTS = "checkpoint.json", "weights-*.safetensors"


@dataclass(frozen=True)
class EpochMetrics:
    """`epoch` counts from 1, `loss` is the mean over the batches, `extra` holds the numbers from `after_epoch`."""

    epoch: int
    rate: float
    loss: float
    seconds: float
    extra: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        extra = "".join(f", {name} {value:.4g}" for name, value in self.extra.items())
        return f"epoch {self.epoch}: loss {self.loss:.4g}{extra}, rate {self.rate:.4g}, {self.seconds:.1f} s"


@dataclass(frozen=True)
class TrainingHistory:
    """The metrics of a finished training."""

    epochs: tuple[EpochMetrics, ...]
    initial_loss: float

    @property
    def seconds(self) -> float:
        return sum(metrics.seconds for metrics in self.epochs)

    def __str__(self) -> str:
        last = self.epochs[-1]
        return f"{last.epoch} epochs in {self.seconds:.1f} s: loss {self.initial_loss:.3g} to {last.loss:.3g}"


def append_metrics(folder: Path, metrics: EpochMetrics) -> None:
    """Add the line of one epoch to metrics.jsonl."""
    append_line(folder / METRICS, asdict(metrics))


def read_metrics(folder: Path) -> list[EpochMetrics]:
    """Read the epochs of the training in `folder`."""
    path = folder / METRICS
    if not path.exists():
        return []
    with expected(path):
        epochs = [EpochMetrics(**line) for line in read_lines(path)]
        if [metrics.epoch for metrics in epochs] != list(range(1, len(epochs) + 1)):
            raise ValueError("its epochs are not 1, 2, 3, …")
    return epochs


def rewind_metrics(folder: Path, epochs: int) -> list[EpochMetrics]:
    """Remove the lines after the first `epochs`, which the checkpoint does not include; return the others."""
    path = folder / METRICS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if len(lines) < epochs:
        raise CorruptFileError(
            f"{path} has {len(lines)} epochs, the checkpoint beside it has {epochs}. Put the original file back, "
            f"or delete {folder} to train again."
        )
    if len(lines) > epochs:
        write_bytes(path, b"".join(lines[:epochs]))
    return read_metrics(folder)
