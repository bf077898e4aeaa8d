"""Train: objectives to minimise, one loop that minimises them, checkpoints to go on from."""

from excite.training.history import EpochMetrics, Training
from excite.training.loop import descend, train
from excite.training.objectives import (
    OBJECTIVES,
    Objective,
    awp_loss,
    frozen,
    pgd_at_loss,
    rst_loss,
    standard_loss,
    trades_loss,
)

__all__ = [
    "OBJECTIVES",
    "EpochMetrics",
    "Objective",
    "Training",
    "awp_loss",
    "descend",
    "frozen",
    "pgd_at_loss",
    "rst_loss",
    "standard_loss",
    "trades_loss",
    "train",
]
