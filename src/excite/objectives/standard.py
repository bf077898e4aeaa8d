"""Standard training: cross-entropy on the images as they are."""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.objectives.protocol import Objective


def standard_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy on the images as they are."""
    return cross_entropy(model(x), y)


def standard_objective() -> Objective:
    return standard_loss
