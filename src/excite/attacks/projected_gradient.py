"""Projected gradient descent: climb a loss inside the ε-ball, keep each example's best point."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from excite.attacks.fast_model import FastModel, fast_inference
from excite.attacks.geometry import Norm, ascent, per_image, project, random_point
from excite.attacks.protocol import Attack, check_inputs, check_options, default_generator, in_words, right_answers
from excite.errors import InputError
from excite.precision import full_precision
from excite.quantities import MODULE, check_kind, check_number, check_whole, pixels
from excite.registry import check_choice, lookup

LossName = Literal["cross_entropy", "margin", "dlr", "kl"]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """The best wrong logit minus the right one: positive exactly where the example is misclassified."""
    right = logits.gather(1, y[:, None]).squeeze(1)
    wrong = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return wrong - right


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The margin divided by the gap between first and third logit (Croce & Hein 2020), which is scale-free."""
    if logits.shape[1] < 3:
        raise InputError(f'The DLR loss needs three classes; the model has {logits.shape[1]}. Use loss="margin".')
    largest = logits.topk(3, dim=1).values
    return margin(logits, y) / (largest[:, 0] - largest[:, 2] + 1e-12)


def targeted_dlr(logits: Tensor, right_and_target: Tensor) -> Tensor:
    """The target's logit minus the right one, over the spread of the first, third and fourth (Croce & Hein 2020)."""
    right, target = logits.gather(1, right_and_target).unbind(1)
    largest = logits.topk(4, dim=1).values
    return (target - right) / (largest[:, 0] - (largest[:, 2] + largest[:, 3]) / 2 + 1e-12)


def kl(logits: Tensor, clean_log_probabilities: Tensor) -> Tensor:
    """KL(p(x) ‖ p(x_adv)), the inner loss of TRADES, which uses no labels."""
    log_probabilities = functional.log_softmax(logits, dim=1)
    return functional.kl_div(log_probabilities, clean_log_probabilities, reduction="none", log_target=True).sum(1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": cross_entropy,
    "margin": margin,
    "dlr": dlr,
    "kl": kl,
}


Keep = Literal["best", "largest_loss", "last"]


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    step: float | None = None,
    steps: int = 20,
    norm: Norm = "linf",
    random_start: bool = False,
    start: Tensor | None = None,
    restarts: int = 1,
    loss: LossName = "cross_entropy",
    keep: Keep = "best",
    targets: Tensor | int | None = None,
    early_stop: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Adversarial images for `x`, inside the ball of radius `eps` around it and inside [0, 1].

    `keep="best"` returns a misclassified point if there is one, and of several the one with the largest loss;
    `keep="largest_loss"` considers the loss alone, as adversarial training does; `keep="last"` returns the last
    iterate, which saves a forward pass. With `early_stop`, examples leave the batch as soon as they are misclassified:
    the same accuracy for less work. Restarts begin at random points, as with `random_start`; the first one begins at
    `start` if given, as in TRADES. The default step is 2.5 ε / steps. The model is attacked in eval mode and left as it
    was.

    `targets`, one class per image, asks for images that the model takes for that class. A number n of targets attacks
    toward the n likeliest wrong classes in turn, until the image is misclassified; n = classes − 1 tries them all.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, y = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    >>> bool((pgd(model, x, y, eps=0.1, step=0.05) - x).abs().max() <= 0.1 + 1e-7)
    True
    """
    n_targets = None if isinstance(targets, Tensor) else targets
    options = PGD(eps, cast(float, step), steps, norm, random_start, restarts, loss, keep, n_targets)  # checks them
    if loss == "kl" and not options.random_start and start is None:
        raise InputError('loss="kl" is flat at the clean image; pass random_start=True or start=.')
    check_kind("model", model, "parameters", MODULE)
    check_inputs(x, y)
    given: dict[str, Any] = {"early_stop": early_stop, "generator": generator}
    if isinstance(targets, Tensor):
        _check_loss(loss)
        if targets.shape != y.shape or targets.dtype != torch.int64:
            raise InputError(f"targets must be {len(y)} class numbers, int64: one per image.")
        return climb(options, model, x, targets, start=start, toward=targets, reach=True, **given)
    if n_targets is None:
        return climb(options, model, x, y, start=start, **given)
    return _toward_likeliest(options, fast_inference(model), x.detach(), y, start=start, **given)


@torch.no_grad()
def _toward_likeliest(
    options: "PGD", model: FastModel, x: Tensor, y: Tensor, *, start: Tensor | None, **given: Any
) -> Tensor:
    """Attack toward one class after the other; those that an attack fooled are left out of the next."""
    x_adv, standing = x.clone(), torch.arange(len(x), device=x.device)
    if len(x) == 0:
        return x_adv
    logits, n_targets = model(x), options.targets or 1
    if n_targets >= logits.shape[1]:
        raise InputError(
            f"targets={n_targets}, but there are only {logits.shape[1] - 1} wrong classes; pass at most that."
        )
    wrong_first = logits.scatter(1, y[:, None], -torch.inf).argsort(dim=1, descending=True)
    for classes in wrong_first[:, :n_targets].unbind(1):
        begin = None if start is None else start[standing]
        moved = climb(options, model, x[standing], y[standing], start=begin, toward=classes[standing], **given)
        x_adv[standing] = moved
        standing = standing[right_answers(model(moved), y[standing])]
        if len(standing) == 0:
            break
    return x_adv


def climb(
    options: "PGD",
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    start: Tensor | None = None,
    toward: Tensor | None = None,
    reach: bool = False,
    early_stop: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`pgd` without its checks, for which the host would have to wait for a GPU at every step of a training.

    It climbs the loss of the labels `y`, or descends that of the classes `toward`. The model is fooled where it misses
    `y`, or with `reach`, where it answers `y`.
    """
    x, eps, norm, keep = x.detach(), options.eps, options.norm, options.keep
    if len(x) == 0 or eps == 0:
        return x.clone()
    model = fast_inference(model)
    target = _clean_log_probabilities(model, x) if options.loss == "kl" else y if toward is None else toward
    loss = LOSSES[options.loss] if toward is None else _negative(LOSSES[options.loss])
    best = _Best(x, y, prefer_fooled=keep == "best", reach=reach)
    for restart in range(options.restarts):
        if start is not None and restart == 0:
            x_adv = project(start.detach(), x, eps=eps, norm=norm)
        elif options.random_start:
            x_adv = random_point(x, eps=eps, norm=norm, generator=generator)
        else:
            x_adv = x.clone()
        active: Tensor | slice = slice(None)  # examples that are still attacked
        for i in range(options.steps + 1):
            last = i == options.steps
            if early_stop:
                active, x_adv = best.still_right(active, x_adv)
                if len(x_adv) == 0:
                    return best.images
            if last and keep == "last":
                return x_adv
            logits, losses, gradient = loss_and_gradient(model, x_adv, target[active], loss, last=last)
            if keep != "last":
                best.update(active, x_adv, logits, losses)
            if gradient is not None:
                x_adv = project(x_adv + options.step * ascent(gradient, norm=norm), x[active], eps=eps, norm=norm)
    return best.images


def _check_loss(loss: LossName) -> None:
    """KL knows no targets. DLR also grows with the first logit, which leads away from a target far below it."""
    if loss not in ("cross_entropy", "margin"):
        raise InputError(f'loss="{loss}" cannot lead to targets; use loss="margin", or leave targets out.')


def _negative(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda logits, target: -loss(logits, target)


class _Best:
    """Each example's best point so far."""

    def __init__(self, x: Tensor, y: Tensor, *, prefer_fooled: bool, reach: bool) -> None:
        self.images, self.y, self.prefer_fooled, self.reach = x.clone(), y, prefer_fooled, reach
        self.losses = torch.full((len(x),), -torch.inf, device=x.device)
        self.fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)

    def update(self, active: Tensor | slice, x_adv: Tensor, logits: Tensor, losses: Tensor) -> None:
        fooled, fools = self.fooled[active], right_answers(logits, self.y[active]) == self.reach
        better = losses > self.losses[active]
        if self.prefer_fooled:
            better = (fools & ~fooled) | ((fools == fooled) & better)
        # torch.where instead of an index: with an index, the host waits for the device to count the entries.
        self.images[active] = torch.where(per_image(better, x_adv), x_adv, self.images[active])
        self.losses[active] = torch.where(better, losses.to(self.losses.dtype), self.losses[active])
        self.fooled[active] = torch.where(better, fools, fooled)

    def still_right(self, active: Tensor | slice, x_adv: Tensor) -> tuple[Tensor | slice, Tensor]:
        """Examples and points without those that have been fooled."""
        stays = (~self.fooled[active]).nonzero().squeeze(1)
        if len(stays) == len(x_adv):
            return active, x_adv
        return stays if isinstance(active, slice) else active[stays], x_adv[stays]


def loss_and_gradient(
    model: FastModel, x_adv: Tensor, target: Tensor, loss: Callable[[Tensor, Tensor], Tensor], *, last: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits and losses at `x_adv`, and the gradient to go on with unless this is the last point."""
    with torch.set_grad_enabled(not last), model.at_work(x_adv.device):
        x_adv = x_adv.detach().requires_grad_(not last)
        logits = full_precision(model(x_adv))
        value = loss(logits, target)
        if last:
            return logits, value, None
        if not value.requires_grad:
            return logits, value, torch.zeros_like(x_adv)
        (gradient,) = torch.autograd.grad(value.sum(), x_adv, materialize_grads=True)
    return logits.detach(), value.detach(), torch.nan_to_num(gradient, nan=0.0)


@torch.no_grad()
def _clean_log_probabilities(model: nn.Module, x: Tensor) -> Tensor:
    return functional.log_softmax(full_precision(model(x)), dim=1)


@dataclasses.dataclass(frozen=True)
class PGD(Attack):
    """`pgd` with its options, for evaluations: misclassified examples leave the batch if `keep` is "best"."""

    eps: float
    step: float = cast(float, None)  # None becomes 2.5 ε / steps
    steps: int = 20
    norm: Norm = "linf"
    random_start: bool = False  # always true with several restarts, which would otherwise all be the same
    restarts: int = 1
    loss: LossName = "cross_entropy"
    keep: Keep = "best"
    targets: int | None = None  # attack toward so many of the likeliest wrong classes in turn

    def __post_init__(self) -> None:
        check_options(self.eps, self.norm, restarts=self.restarts)
        check_whole("steps", self.steps, least=0)
        lookup("loss", LOSSES, self.loss)
        check_choice("value of keep", Keep, self.keep)
        if self.keep != "best" and self.restarts > 1:
            raise InputError(f'keep="{self.keep}" cannot be combined with several restarts; use keep="best".')
        if self.targets is not None:
            check_whole("targets", self.targets, least=1)
            _check_loss(self.loss)
        default = 2.5 * self.eps / max(1, self.steps)
        object.__setattr__(self, "step", default if cast(float | None, self.step) is None else self.step)
        check_number("step", self.step)
        if not 0 <= self.step < float("inf"):
            raise InputError(f"PGD needs a finite step ≥ 0; got step={self.step:g}.")
        object.__setattr__(self, "random_start", self.random_start or self.restarts > 1)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        early, generator = self.keep == "best", generator or default_generator()
        return pgd(model, x, y, **vars(self), start=start, early_stop=early, generator=generator)

    go_on = __call__

    def at(self, eps: float) -> "PGD":
        """Scale the step with the radius."""
        return dataclasses.replace(self, eps=eps, step=self.step * eps / self.eps if self.eps else self.step)

    def passes(self, classes: int) -> float:
        return self.restarts * (2 * self.steps + 1) * min(self.targets or 1, max(1, classes - 1))

    def __str__(self) -> str:
        """For instance: PGD-20, L∞ ε = 8/255, step 2/255, random start, 5 restarts, margin loss."""
        words = [
            f"PGD-{self.steps}",
            in_words(self.eps, self.norm),
            f"step {pixels(self.step)}",
            *(["random start"] if self.random_start else []),
            *([f"{self.restarts} restarts"] if self.restarts > 1 else []),
            *([f"{self.loss} loss"] if self.loss != "cross_entropy" else []),
            *([f"{self.targets} targets"] if self.targets else []),
            *([f"{self.keep.replace('_', ' ')} iterate"] if self.keep != "best" else []),
        ]
        return ", ".join(words)


def fgsm(eps: float, norm: Norm = "linf", loss: LossName = "cross_entropy") -> PGD:
    """The fast gradient sign method (Goodfellow et al. 2015): one step of PGD, of length ε."""
    return PGD(eps, eps, steps=1, norm=norm, loss=loss)
