"""TRADES (Zhang et al. 2019): be right on the image, and answer alike all around it."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from excite.attacks.fast_model import Refolded
from excite.attacks.projected_gradient import check_pgd, full_precision, pgd
from excite.attacks.protocol import check_inputs
from excite.errors import InputError
from excite.objectives.protocol import EPS, STEP, STEPS, Adversarial, Forward, carried
from excite.quantities import check_number
from excite.registry import named_options, with_named_options

BETA = 6.0
NOISE = 0.001  # where the attack starts: KL is flat at the image itself


@named_options
def trades_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    beta: float = BETA,
    eps: float = EPS,
    step: float = STEP,
    steps: int = STEPS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mean over the batch of cross-entropy(p(x), y) + beta · KL(p(x) ‖ p(x′)); differentiable in the parameters.

    The direction is that of the TRADES authors' code, natural to adversarial: Σ p(x) (log p(x) − log p(x′)), torch's
    kl_div with the adversarial log-probabilities as input and the natural ones as target; the paper's formula has the
    two the other way round. Gradients flow through both.
    x′ is the last point of PGD on that KL, in eval mode, from x + N(0, 0.001²). In a loop, `Trades(...)` made once and
    called as often saves tracing the model anew at every step.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, y = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    >>> bool(trades_loss(model, x, y) > trades_loss(model, x, y, beta=0.0))
    True
    """
    return Trades(beta, eps, step, steps)(model, x, y, generator)


@with_named_options
@dataclass(frozen=True)
class Trades(Adversarial[Tensor]):
    """`trades_loss` with its options set."""

    title: ClassVar[str] = "TRADES"
    losses: ClassVar[int] = 2

    beta: float = BETA
    eps: float = EPS
    step: float = STEP
    steps: int = STEPS
    _fast: Refolded = field(default_factory=Refolded, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_pgd(eps=self.eps, step=self.step, steps=self.steps)
        check_number("beta", self.beta)
        if not 0 <= self.beta < math.inf:
            raise InputError(
                f"beta={self.beta} must be finite, and 0 or more: below, it would reward answers that differ. "
                "The released code has 6.0, where "
                "the paper's text says 0.6."
            )

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        check_inputs(x, y)
        device = x.device if generator is None else generator.device
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device)
        return pgd(
            self._fast(model, x),
            x,
            y,
            eps=self.eps,
            step=self.step,
            steps=self.steps,
            start=x + NOISE * noise.to(x.device),
            loss="kl",
            keep="last",
        )

    def loss_at(self, model: Forward, x: Tensor, perturbation: Tensor, y: Tensor) -> Tensor:
        return self.losses_at(model, x, perturbation, y).mean()

    def losses_at(self, model: Forward, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        """One loss per example; two forward passes, because batch-norm sees each kind of image by itself."""
        logits = full_precision(model(x))
        natural = log_softmax(logits, dim=1)
        adversarial = log_softmax(full_precision(model(carried(x_adv, x))), dim=1)
        divergence = kl_div(adversarial, natural, reduction="none", log_target=True).sum(1)
        return cross_entropy(logits, y, reduction="none") + self.beta * divergence
