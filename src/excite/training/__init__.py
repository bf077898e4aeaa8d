"""The training loop for every objective, with checkpoints to resume from."""

from typing import TYPE_CHECKING

from excite.lazy import lazily
from excite.training.history import EpochMetrics, TrainingHistory

if TYPE_CHECKING:
    from excite.training.loop import descend, train

__all__ = [
    "EpochMetrics",
    "TrainingHistory",
    "descend",
    "train",
]

__getattr__ = lazily(__name__, {"descend": "loop", "train": "loop"})
