"""What every attack is: a function (model, x, y, generator) -> x_adv that knows its ball and its cost.

Also here: an attack at several radii, and checks of inputs.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from excite.attacks.geometry import Norm
from excite.errors import InputError, unknown
from excite.quantities import check_number, check_whole, pixels

AttackFunction = Callable[..., Tensor]


class AttackWarning(UserWarning):
    """An attack met a condition that makes its results doubtful."""


class Attack(abc.ABC):
    """Base class of all attacks; a subclass is a frozen dataclass of its options."""

    eps: float | None  # the ball it stays in, if known
    norm: Norm | None
    follows_gradients: ClassVar[bool] = True

    @abc.abstractmethod
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Images inside the ball around `x`, misclassified where the attack succeeds.

        Without a generator, `default_generator()` is used: every call makes the same random choices.
        """

    def passes(self, classes: int) -> float:  # noqa: ARG002
        """Forward and backward passes for one image that withstands the whole attack."""
        raise InputError(f"The cost of {self} is unknown; make it an `Attack` with a method `passes`.")

    def doubts(self, classes: int) -> Sequence[str]:  # noqa: ARG002
        """What makes its results doubtful for a model with so many classes."""
        return ()

    @property
    def stages(self) -> Sequence[tuple[str, "Attack"]]:
        """The attacks that it runs, with their names, in order."""
        return [("", self)]

    @property
    def rungs(self) -> tuple["Attack", ...]:
        """The attack at each of its radii, smallest first."""
        return (self,)

    def at(self, eps: float) -> "Attack":
        """The same attack in a ball of another size."""
        if "eps" not in getattr(self, "__dataclass_fields__", ()):
            raise takes_no_eps(self)
        return dataclasses.replace(self, eps=eps)  # type: ignore[type-var]

    def go_on(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None, start: Tensor) -> Tensor:
        """Attack from points that fooled the model in a larger ball, if the attack can use them."""
        del start
        return self(model, x, y, generator)


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
        object.__setattr__(self, "attack", self.attack.rungs[-1].at(self.radii[-1]))

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

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.attack(model, x, y, generator)

    def __str__(self) -> str:
        smaller = ", ".join(map(pixels, self.radii[:-1]))
        return f"{self.attack}; where it succeeds also at ε = {smaller}" if smaller else str(self.attack)


def default_generator() -> torch.Generator:
    """What an attack draws from that is called without a generator: it has seed 0."""
    return torch.Generator().manual_seed(0)


def takes_no_eps(attack: object) -> InputError:
    return InputError(f"{attack} takes no eps: leave eps out, or give the attack a parameter `eps`.")


def check_ball(eps: float, norm: str) -> None:
    """Refuse an invalid radius, such as one given in steps of 1/255."""
    if norm not in get_args(Norm):
        raise unknown("norm", norm, get_args(Norm))
    check_number("eps", eps)
    if not (eps >= 0 and math.isfinite(eps)):
        raise InputError(f"eps={eps:g} is not a radius; pass eps ≥ 0, such as 8/255.")
    if norm == "linf" and eps > 1:
        raise InputError(
            f"eps={eps:g} is too large: pixels lie in [0, 1]. For {eps:g} of 255 levels pass eps={eps:g}/255."
        )


def check_options(eps: float, norm: str, *, seed: int = 0, **counts: int) -> None:
    """Refuse an invalid ball, a negative seed, and counts below 1."""
    check_ball(eps, norm)
    check_whole("seed", seed, least=0)
    for name, count in counts.items():
        check_whole(name, count, least=1)


def in_words(eps: float, norm: Norm) -> str:
    """As the field writes it: L∞ ε = 8/255."""
    return f"{'L∞' if norm == 'linf' else norm.upper()} ε = {pixels(eps)}"


def check_inputs(x: Tensor, y: Tensor) -> None:
    """Refuse images and labels that cannot be attacked, and torch's inference mode, which has no gradients."""
    if torch.is_inference_mode_enabled():
        raise InputError(
            "Attacks need gradients, which torch's inference mode does not compute. Leave it, or attack inside "
            "torch.inference_mode(False); torch.no_grad() is fine."
        )
    check_examples(x, y)


def check_examples(x: Tensor, y: Tensor) -> None:
    """Refuse images outside [0, 1], labels that are not class numbers, and different numbers of both."""
    if not x.is_floating_point():
        raise InputError(
            f"Images must be floating-point numbers in [0, 1], not {x.dtype}; pass x.float() / 255. For text, attack a "
            "model that takes embeddings, scaled to [0, 1]."
        )
    if y.dtype != torch.int64:  # torch's losses take no other
        raise InputError(f"Labels must be class numbers, int64, not {y.dtype}; pass y.long().")
    if y.dim() != 1 or len(x) != len(y):
        raise InputError(f"{len(x)} images need labels of shape ({len(x)},); got {tuple(y.shape)}.")
    if x.numel() == 0:
        return
    low, high = x.aminmax()
    if bool((y.min() >= 0) & (low >= 0) & (high <= 1)):  # the host waits for a GPU once
        return
    if y.min() < 0:
        raise InputError(f"Labels are class numbers from 0; the smallest is {int(y.min())}. Remove such images.")
    raise InputError(
        f"Images must lie in [0, 1]; these range from {float(low):.4g} to {float(high):.4g}. "
        "Divide by 255, and put any normalization into the model, because ε is measured in pixels."
    )


def check_labels(y: Tensor, logits: Tensor) -> None:
    """Refuse labels for which the model has no logit."""
    classes = logits.shape[1]
    if y.max() >= classes:
        raise InputError(
            f"Labels must be 0 to {classes - 1} for a model with {classes} logits; the largest is {int(y.max())}."
        )


def right_answers(logits: Tensor, y: Tensor) -> Tensor:
    """Per example, whether the largest logit is the label's; non-finite outputs are always wrong."""
    return (logits.argmax(1) == y) & logits.isfinite().all(1)
