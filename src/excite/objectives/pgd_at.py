"""PGD adversarial training (Madry et al. 2018): cross-entropy at the worst point that PGD finds."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.attacks.fast_model import Refolded
from excite.attacks.projected_gradient import check_pgd, full_precision, pgd
from excite.attacks.protocol import check_inputs
from excite.objectives.protocol import EPS, STEP, STEPS, Adversarial, Forward, follow_input


def pgd_at_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float = EPS,
    step: float = STEP,
    steps: int = STEPS,
    random_start: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Maximum over ‖x′ − x‖∞ ≤ eps of the mean cross-entropy at x′, found by PGD; differentiable in the parameters.

    For each example the iterate with the largest loss counts, including the starting point. In a training loop, create
    `PGDAT(...)` once and call that: it traces the model once instead of at every step.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, y = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    >>> bool(pgd_at_loss(model, x, y) >= cross_entropy(model(x), y))
    True
    """
    return PGDAT(eps, step, steps, random_start)(model, x, y, generator)


@dataclass(frozen=True)
class PGDAT(Adversarial[Tensor]):
    """`pgd_at_loss` with fixed options."""

    title: ClassVar[str] = "PGD adversarial training"
    losses: ClassVar[int] = 1

    eps: float = EPS
    step: float = STEP
    steps: int = STEPS
    random_start: bool = False
    _fast: Refolded = field(default_factory=Refolded, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_pgd(eps=self.eps, step=self.step, steps=self.steps)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        check_inputs(x, y)
        return pgd(
            self._fast(model, x),
            x,
            y,
            eps=self.eps,
            step=self.step,
            steps=self.steps,
            random_start=self.random_start,
            keep="largest_loss",
            generator=generator,
        )

    def loss_at(self, model: Forward, x: Tensor, perturbation: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(full_precision(model(follow_input(perturbation, x))), y)
