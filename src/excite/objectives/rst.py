"""Robust self-training (Carmon et al. 2019): TRADES on batches whose second half is labelled by a teacher."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.objectives.protocol import EPS, STEP, STEPS, Forward
from excite.objectives.trades import BETA, Trades
from excite.quantities import check_number
from excite.registry import named_options, with_named_options


@named_options
def rst_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    unlabelled_weight: float = 1.0,
    beta: float = BETA,
    eps: float = EPS,
    step: float = STEP,
    steps: int = STEPS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The weighted mean of the TRADES losses: 1 for the first ⌈n/2⌉ examples, `unlabelled_weight` for the rest.

    The order is the contract: labelled examples first, pseudo-labelled ones after them. At weight 1 this is
    `trades_loss` of the batch; at 0 the second half counts only in the batch-norm statistics.
    """
    return RST(beta, eps, step, steps, unlabelled_weight=unlabelled_weight)(model, x, y, generator)


@with_named_options
@dataclass(frozen=True)
class RST(Trades):
    """`rst_loss` with its options set."""

    title: ClassVar[str] = "robust self-training"
    needs_pseudo_labels: ClassVar[bool] = True

    unlabelled_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("unlabelled_weight", self.unlabelled_weight)
        if not 0 <= self.unlabelled_weight < math.inf:
            raise InputError(
                f"unlabelled_weight={self.unlabelled_weight} must be finite and 0 or more; 1 counts both halves alike."
            )

    def loss_at(self, model: Forward, x: Tensor, perturbation: Tensor, y: Tensor) -> Tensor:
        losses = self.losses_at(model, x, perturbation, y)
        weights = torch.ones_like(losses)
        weights[(len(losses) + 1) // 2 :] = self.unlabelled_weight
        return (weights * losses).sum() / weights.sum()
