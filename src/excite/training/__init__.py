"""Train: objectives to minimise, one loop that minimises them, checkpoints to go on from."""

from excite.training.history import EpochMetrics, Training
from excite.training.loop import descend, train
from excite.training.objectives import OBJECTIVES, Objective, standard_loss

__all__ = ["OBJECTIVES", "EpochMetrics", "Objective", "Training", "descend", "standard_loss", "train"]
