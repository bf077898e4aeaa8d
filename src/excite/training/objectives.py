"""What a training step minimises: pure functions (model, x, y) -> loss, usable in any loop."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]


def standard_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy on the images as they are."""
    return cross_entropy(model(x), y)


OBJECTIVES: dict[str, Objective] = {"standard": standard_loss}
