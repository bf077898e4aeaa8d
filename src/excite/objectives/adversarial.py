"""Adversarial objectives: PGD adversarial training, TRADES, robust self-training, and weight perturbation.

PGD adversarial training (Madry et al. 2018) minimizes the cross-entropy at the worst point that PGD finds. TRADES
(Zhang et al. 2019) classifies the image correctly and predicts the same around it. Robust self-training (RST, Carmon et
al. 2019) is TRADES on batches whose second half is labeled by a teacher. Adversarial weight perturbation (AWP, Wu et
al. 2020) minimizes any of these losses at the worst nearby weights.
"""

import abc
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from excite.attacks.fast_model import FastModel, Refolded
from excite.attacks.projected_gradient import PGD, climb
from excite.attacks.protocol import check_inputs
from excite.objectives.protocol import EPS, STEP, STEPS, Adversarial, Forward, check_weight, follow_input
from excite.objectives.sharpness import gradients_at, moved
from excite.precision import full_precision
from excite.registry import build

BETA = 6.0
GAMMA = 0.005
NOISE = 0.001  # the attack starts beside the image, because the gradient of the KL divergence is zero at the image


@dataclass(frozen=True, kw_only=True)
class ImageAttack(Adversarial):
    """Cross-entropy at attacked images. The attack uses a fast copy of the model, traced at the first batch."""

    losses: ClassVar[int] = 1

    eps: float = EPS
    _fast: Refolded = field(default_factory=Refolded, init=False, repr=False, compare=False)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if not self._fast.knows(model):
            check_inputs(x, y)
        return self._climb(self._fast(model, x), x, y, generator)

    @abc.abstractmethod
    def _climb(self, model: FastModel, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor: ...

    def loss_at(self, model: Forward, x: Tensor, perturbation: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(full_precision(model(follow_input(perturbation, x))), y)


@dataclass(frozen=True, kw_only=True)
class Iterated(ImageAttack):
    """The inner attack is PGD."""

    step: float = STEP
    steps: int = STEPS

    def __post_init__(self) -> None:
        _ = self._attack  # checks the options

    @property
    @abc.abstractmethod
    def _attack(self) -> PGD: ...


@dataclass(frozen=True)
class PGDAT(Iterated):
    """Maximum over ‖x′ − x‖∞ ≤ eps of the mean cross-entropy at x′, found by PGD; differentiable in the parameters.

    For each example the iterate with the largest loss counts, including the starting point.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, y = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    >>> bool(PGDAT()(model, x, y) >= cross_entropy(model(x), y))
    True
    """

    random_start: bool = False

    @property
    def _attack(self) -> PGD:
        return PGD(self.eps, self.step, self.steps, random_start=self.random_start, keep="largest_loss")

    def _climb(self, model: FastModel, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        return climb(self._attack, model, x, y, generator=generator)


@dataclass(frozen=True)
class Trades(Iterated):
    """Mean over the batch of cross-entropy(p(x), y) + beta · KL(p(x) ‖ p(x′)); differentiable in the parameters.

    The divergence is Σ p(x) (log p(x) − log p(x′)), as in the TRADES authors' code; the formula in the paper has its
    arguments swapped. Gradients flow through both. x′ is the last iterate of PGD on this divergence, in eval mode,
    started at x + N(0, 0.001²).

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, y = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    >>> bool(Trades()(model, x, y) > Trades(beta=0.0)(model, x, y))
    True
    """

    losses: ClassVar[int] = 2

    beta: float = BETA

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight("beta", self.beta, "The released code uses 6.0; the paper says 0.6.")

    @property
    def _attack(self) -> PGD:
        return PGD(self.eps, self.step, self.steps, loss="kl", keep="last")

    def _climb(self, model: FastModel, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        device = x.device if generator is None else generator.device
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device)
        return climb(self._attack, model, x, y, start=x + NOISE * noise.to(x.device))

    def loss_at(self, model: Forward, x: Tensor, perturbation: Tensor, y: Tensor) -> Tensor:
        return self.losses_at(model, x, perturbation, y).mean()

    def losses_at(self, model: Forward, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        """One loss per example. Clean and adversarial images get separate forward passes, because of batch norm."""
        logits = full_precision(model(x))
        natural = log_softmax(logits, dim=1)
        adversarial = log_softmax(full_precision(model(follow_input(x_adv, x))), dim=1)
        divergence = kl_div(adversarial, natural, reduction="none", log_target=True).sum(1)
        return cross_entropy(logits, y, reduction="none") + self.beta * divergence


@dataclass(frozen=True)
class RST(Trades):
    """Weighted mean of TRADES losses: weight 1 for the first ⌈n/2⌉ examples, `unlabelled_weight` for the rest.

    Labeled examples must come first, pseudo-labeled ones second. At weight 1 this is TRADES' loss of the batch. At
    weight 0 the second half only contributes to the batch-norm statistics.
    """

    needs_pseudo_labels: ClassVar[bool] = True

    unlabelled_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight("unlabelled_weight", self.unlabelled_weight, "1 weights both halves equally.")

    def loss_at(self, model: Forward, x: Tensor, perturbation: Tensor, y: Tensor) -> Tensor:
        losses = self.losses_at(model, x, perturbation, y)
        weights = torch.ones_like(losses)
        weights[(len(losses) + 1) // 2 :] = self.unlabelled_weight
        return (weights * losses).sum() / weights.sum()


class WeightPerturbation(NamedTuple):
    """Adversarial images, and what to add to each named weight."""

    x_adv: Tensor
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class AWP(Adversarial):
    """Loss of the adversarial objective `on` at (x′, θ + v), differentiated with respect to θ.

    x′ is the adversarial example that `on` finds at θ. v is one step up the gradient of the loss at x′. It moves every
    trained weight tensor w with two or more dimensions by gamma · ‖w‖; biases and batch-norm scales are not moved. The
    step up uses the same mode and dropout masks as training. Only the forward passes at θ + v update batch-norm
    statistics. If several processes share a batch, each computes v from its part. `beta` is passed to TRADES.
    """

    on: str = "trades"
    gamma: float = GAMMA
    beta: float | None = None  # None: the default of `on`
    eps: float = EPS
    step: float = STEP
    steps: int = STEPS

    def __post_init__(self) -> None:
        check_weight("gamma", self.gamma, "0.005 moves each weight tensor by half a percent.")
        _ = self._inner  # checks `on` and its options

    @cached_property
    def _inner(self) -> Iterated:
        options = {"eps": self.eps, "step": self.step, "steps": self.steps}
        if self.beta is not None:
            options["beta"] = self.beta
        return build("objective to perturb weights under", {"trades": Trades, "pgd_at": PGDAT}, self.on, options)

    @property
    def losses(self) -> int:
        return 2 * self._inner.losses  # the step up needs each loss once more

    def perturb(
        self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None
    ) -> WeightPerturbation:
        x_adv = self._inner.perturb(model, x, y, generator)
        weights = {name: weight for name, weight in model.named_parameters() if weight.dim() >= 2}
        gradients = gradients_at(model, weights, x, lambda: self._inner.loss_at(model, x.detach(), x_adv, y))
        lengths = {name: self.gamma * weights[name].detach().norm() for name in gradients}
        return WeightPerturbation(
            x_adv, {name: lengths[name] * g / g.norm().clamp_min(1e-12) for name, g in gradients.items()}
        )

    def loss_at(self, model: nn.Module, x: Tensor, perturbation: WeightPerturbation, y: Tensor) -> Tensor:
        return self._inner.loss_at(moved(model, perturbation.weights), x, perturbation.x_adv, y)
