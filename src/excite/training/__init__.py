"""One loop that minimises any objective, and checkpoints to go on from."""

from excite.training.history import EpochMetrics, TrainingHistory
from excite.training.loop import descend, train

__all__ = [
    "EpochMetrics",
    "TrainingHistory",
    "descend",
    "train",
]
