"""One loop that minimises any objective, and checkpoints to go on from."""

from excite.training.history import EpochMetrics, Training
from excite.training.loop import descend, train

__all__ = [
    "EpochMetrics",
    "Training",
    "descend",
    "train",
]
