"""An attack is a function (model, x, y, generator) -> x_adv that knows its ball and cost; a cascade runs several.

What stays inside a ball, and how to get back into it, is here, too: rounding included.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from excite.errors import InputError, unknown
from excite.quantities import check_number, check_whole, pixels

AttackFunction = Callable[..., Tensor]
Norm = Literal["linf", "l2"]
TINY = 1e-12


class AttackWarning(UserWarning):
    """An attack saw something that makes its verdicts doubtful."""


class Attack(abc.ABC):
    """What every attack tells about itself; a frozen dataclass of its options gives the rest."""

    eps: float | None  # the ball it stays in, if it says so
    norm: Norm | None
    follows_gradients: ClassVar[bool] = True

    @abc.abstractmethod
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        """Images inside the ball around `x`: wrong ones where the attack succeeded."""

    @abc.abstractmethod
    def passes(self, classes: int) -> float:
        """Through the model, forward and backward, by one image that withstands to the end."""

    @property
    def stages(self) -> Sequence[tuple[str, "Attack"]]:
        """Each attack that runs, with its name, in order."""
        return [("", self)]

    @property
    def rungs(self) -> tuple["Attack", ...]:
        """The same attack at each radius that it is asked about, smallest first."""
        return (self,)

    def at(self, eps: float) -> "Attack":
        """The same attack in a ball of another size."""
        return dataclasses.replace(self, eps=eps)  # type: ignore[type-var]

    def go_on(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None, start: Tensor) -> Tensor:
        """As a call, from points that fooled the model in a larger ball, if the attack knows what to do with them."""
        del start
        return self(model, x, y, generator)

    def stronger(self) -> "Attack | None":
        """Clearly more of the same, to see whether this was enough."""
        return None


class Cascade(Attack):
    """Attacks in order: an example that falls to one is spared the rest, so only the verdict of all together counts."""

    @property
    @abc.abstractmethod
    def stages(self) -> Sequence[tuple[str, Attack]]: ...

    def passes(self, classes: int) -> float:
        return sum(attack.passes(classes) for _, attack in self.stages)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.run(model, x, y, generator, batch_size=max(1, len(x)))

    def run(
        self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None, *, batch_size: int
    ) -> Tensor:
        check_inputs(x, y)
        x_adv = x.clone()
        standing = torch.arange(len(x), device=x.device)
        attacks: list[AttackFunction] = [_leave, *(attack for _, attack in self.stages)]
        for attack in attacks:
            if len(standing) == 0:
                break
            survivors = []
            for batch in torch.split(standing, batch_size):
                moved = attack(model, x[batch], y[batch], generator)
                with torch.no_grad():
                    logits = model(moved)
                if attack is _leave:
                    check_labels(y[batch], logits)
                fooled = ~right_answers(logits, y[batch])
                x_adv[batch[fooled]] = moved[fooled]
                survivors.append(batch[~fooled])
            standing = torch.cat(survivors)
        return x_adv


@dataclasses.dataclass(frozen=True)
class Ladder(Attack):
    """`attack` at several increasing radii; called directly, it runs at the largest.

    >>> from excite import attacks
    >>> print(Ladder(attacks.create("pgd", eps=8 / 255, step=2 / 255), (4 / 255, 8 / 255)))
    PGD-20, L∞ ε = 8/255, step 2/255; where it succeeds also at ε = 4/255
    """

    attack: Attack
    radii: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "radii", tuple(self.radii))
        increasing = all(low < high for low, high in itertools.pairwise((*self.radii, math.inf)))
        if not (self.radii and self.radii[0] >= 0 and increasing):
            raise InputError(
                f"eps={[round(radius, 6) for radius in self.radii]} must list radii ≥ 0 in increasing order; sort them "
                "and remove duplicates."
            )
        object.__setattr__(self, "attack", self.attack.at(self.radii[-1]))

    @property
    def eps(self) -> float:  # type: ignore[override]
        return self.radii[-1]

    @property
    def norm(self) -> Norm | None:  # type: ignore[override]
        return self.attack.norm

    @property
    def rungs(self) -> tuple[Attack, ...]:
        return tuple(self.attack.at(radius) for radius in self.radii)

    @property
    def stages(self) -> Sequence[tuple[str, Attack]]:
        return self.attack.stages

    def passes(self, classes: int) -> float:
        return self.attack.passes(classes)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.attack(model, x, y, generator)

    def __str__(self) -> str:
        smaller = ", ".join(map(pixels, self.radii[:-1]))
        return f"{self.attack}; where it succeeds also at ε = {smaller}" if smaller else str(self.attack)


def _leave(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:  # noqa: ARG001
    """No attack: what is wrong already has fallen."""
    return x


def check_ball(eps: float, norm: str) -> None:
    """Refuse a radius that is none, or that is given in steps of 1/255."""
    if norm not in get_args(Norm):
        raise unknown("norm", norm, get_args(Norm))
    check_number("eps", eps)
    if not (eps >= 0 and math.isfinite(eps)):
        raise InputError(f"eps={eps:g} is no radius; pass eps ≥ 0, such as 8/255.")
    if norm == "linf" and eps > 1:
        raise InputError(
            f"eps={eps:g} is more than a pixel can change: pixels lie in [0, 1]. For {eps:g} of 255 levels pass "
            f"eps={eps:g}/255."
        )


def check_options(eps: float, norm: str, *, seed: int = 0, **counts: int) -> None:
    """Refuse a ball that is none, a seed below 0, and less than one of what is counted."""
    check_ball(eps, norm)
    check_whole("seed", seed, least=0)
    for name, count in counts.items():
        check_whole(name, count, least=1)


def in_words(eps: float, norm: Norm) -> str:
    """As the field writes it: L∞ ε = 8/255."""
    return f"{'L∞' if norm == 'linf' else 'L2'} ε = {pixels(eps)}"


def check_inputs(x: Tensor, y: Tensor) -> None:
    """Refuse images and labels that no attack can mean, and a mode in which attacks find no gradient to follow."""
    if torch.is_inference_mode_enabled():
        raise InputError(
            "In torch's inference mode there are no gradients, so that no attack could succeed. Attack outside it, or "
            "inside torch.inference_mode(False); torch.no_grad() does no harm."
        )
    check_examples(x, y)


def check_examples(x: Tensor, y: Tensor) -> None:
    """Refuse images and labels that do not fit together, or that have no ball around them."""
    if not x.is_floating_point():
        raise InputError(f"Images must be floating-point numbers in [0, 1], not {x.dtype}; pass x.float() / 255.")
    if y.dtype != torch.int64:  # torch's losses take no other
        raise InputError(f"Labels must be class numbers, int64, not {y.dtype}; pass y.long().")
    if y.dim() != 1 or len(x) != len(y):
        raise InputError(
            f"{len(x)} images of shape {tuple(x.shape[1:])} need {len(x)} labels in one row; got {tuple(y.shape)}."
        )
    if x.numel() == 0:
        return
    if y.min() < 0:
        raise InputError(f"Labels are class numbers from 0; these begin at {int(y.min())}. Leave such images out.")
    low, high = x.aminmax()
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"Images must lie in [0, 1]; these range from {float(low):.4g} to {float(high):.4g}. "
            "Divide by 255, and put any normalisation inside the model: ε is measured in pixels."
        )


def check_labels(y: Tensor, logits: Tensor) -> None:
    """Refuse labels of classes that the model does not have."""
    classes = logits.shape[1]
    if y.max() >= classes:
        raise InputError(
            f"Labels must lie in 0 to {classes - 1} for a model with {classes} logits; these go up to {int(y.max())}."
        )


def right_answers(logits: Tensor, y: Tensor) -> Tensor:
    """Per example, whether the largest logit is the label's; an answer that is not finite is wrong, whatever it is."""
    return (logits.argmax(1) == y) & logits.isfinite().all(1)


def project(x_adv: Tensor, x: Tensor, *, eps: float, norm: Norm) -> Tensor:
    """The point of the ball around `x`, cut with the box [0, 1], that `x_adv` is moved to."""
    # Rounded to nearest, x + δ can lie a little outside; a last step towards x, where needed, keeps |δ| from growing.
    if norm == "linf":
        if x.dtype not in (torch.bfloat16, torch.float16):  # where the rounding is far below what counts
            return torch.clamp(x_adv, x - eps, x + eps).clamp_(0.0, 1.0)
        inside = torch.clamp(x_adv.float(), x.float() - eps, x.float() + eps).to(x.dtype)
        too_far = (inside.float() - x.float()).abs() > eps
        return torch.where(too_far, torch.nextafter(inside, x), inside).clamp_(0.0, 1.0)
    exact = _exact(x)
    delta = _exact(x_adv) - exact
    delta *= (eps / length(delta).clamp_min(TINY)).clamp_max(1.0)
    inside = (exact + delta).to(x.dtype)
    too_far = (_exact(inside) - exact).abs() > delta.abs()
    return torch.where(too_far, torch.nextafter(inside, x), inside).clamp_(0.0, 1.0)


def ascent(gradient: Tensor, *, norm: Norm) -> Tensor:
    """The direction of length one, in `norm`, along which a loss with this gradient grows fastest."""
    if norm == "linf":
        return gradient.sign()
    return gradient / length(gradient).clamp_min(TINY)


def random_point(x: Tensor, *, eps: float, norm: Norm, generator: torch.Generator | None) -> Tensor:
    """A point drawn uniformly from the ball around `x`, then projected into the box."""
    device = x.device if generator is None else generator.device
    if norm == "linf":
        delta = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=device) * 2 - 1
    else:
        direction = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device)
        radius = torch.rand(x.shape[0], generator=generator, dtype=x.dtype, device=device)
        radius = radius.pow(1 / x[0].numel()).reshape(-1, *[1] * (x.dim() - 1))
        delta = ascent(direction, norm=norm) * radius
    return project(x + eps * delta.to(x.device), x, eps=eps, norm=norm)


def distance(x_adv: Tensor, x: Tensor, *, norm: Norm) -> Tensor:
    """How far each image was moved, in float64."""
    delta = x_adv.cpu().double() - x.cpu().double()
    return delta.flatten(1).abs().amax(1) if norm == "linf" else length(delta).flatten()


def length(delta: Tensor) -> Tensor:
    """Euclidean, per example, shaped to divide `delta` by."""
    return delta.flatten(1).square().sum(1).sqrt().reshape(-1, *[1] * (delta.dim() - 1))


def _exact(x: Tensor) -> Tensor:
    return x.float() if x.device.type == "mps" else x.double()  # MPS has no float64
