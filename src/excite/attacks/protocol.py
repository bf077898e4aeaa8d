"""An attack is a function (model, x, y, generator) -> x_adv; a cascade runs several, each on the survivors so far."""

import abc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from excite.errors import InputError

Attack = Callable[[nn.Module, Tensor, Tensor, torch.Generator | None], Tensor]


class AttackWarning(UserWarning):
    """An attack saw something that makes its verdicts doubtful."""


class Cascade(abc.ABC):
    """Attacks in order: an example that falls to one is spared the rest, so only the verdict of all together counts."""

    @property
    @abc.abstractmethod
    def stages(self) -> Sequence[tuple[str, Attack]]:
        """Each attack with its name."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.run(model, x, y, generator, batch_size=max(1, len(x)))

    def run(
        self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None, *, batch_size: int
    ) -> Tensor:
        x_adv = x.clone()
        standing = torch.arange(len(x), device=x.device)
        for attack in (_leave, *(attack for _, attack in self.stages)):
            survivors = []
            for batch in torch.split(standing, batch_size):
                moved = attack(model, x[batch], y[batch], generator)
                with torch.no_grad():
                    fooled = model(moved).argmax(1) != y[batch]
                x_adv[batch[fooled]] = moved[fooled]
                survivors.append(batch[~fooled])
            standing = torch.cat(survivors)
        return x_adv


def _leave(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:  # noqa: ARG001
    """No attack: what is wrong already has fallen."""
    return x


def stages(attack: Attack) -> Sequence[tuple[str, Attack]]:
    return attack.stages if isinstance(attack, Cascade) else [("", attack)]


def describe(attack: Attack) -> str:
    """The same words in every process for the same attack and options: what a resumed evaluation is held against."""
    if hasattr(attack, "__dataclass_fields__"):
        return repr(attack)
    return f"{getattr(attack, '__module__', '')}.{getattr(attack, '__qualname__', type(attack).__qualname__)}"


def pixels(eps: float) -> str:
    """8/255 rather than 0.03137: how the field reads ε."""
    steps = eps * 255
    return f"{round(steps)}/255" if eps > 0 and abs(steps - round(steps)) < 1e-6 and steps > 0.5 else f"{eps:g}"


def check_inputs(x: Tensor, y: Tensor) -> None:
    """Refuse images and labels that no attack can mean."""
    if not x.is_floating_point():
        raise InputError(f"Images must be floating-point numbers in [0, 1], not {x.dtype}; pass x.float() / 255.")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise InputError(f"Labels must be class numbers, not {y.dtype}; pass y.long().")
    if y.dim() != 1 or len(x) != len(y):
        raise InputError(
            f"{len(x)} images of shape {tuple(x.shape[1:])} need {len(x)} labels in one row; got {tuple(y.shape)}."
        )
    if x.numel() == 0:
        return
    low, high = x.aminmax()
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"Images must lie in [0, 1]; these range from {float(low):.4g} to {float(high):.4g}. "
            "Divide by 255, and put any normalisation inside the model: ε is measured in pixels."
        )
