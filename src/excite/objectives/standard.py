"""Standard training: cross-entropy on the images as they are."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.objectives.protocol import TRAINING_PASSES
from excite.registry import named_options, with_named_options


@named_options
def standard_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy on the images as they are."""
    return cross_entropy(model(x), y)


@with_named_options
@dataclass(frozen=True)
class Standard:
    """`standard_loss`, which has no options."""

    title: ClassVar[str] = "standard training"
    passes: ClassVar[int] = TRAINING_PASSES
    needs_pseudo_labels: ClassVar[bool] = False

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return standard_loss(model, x, y)
