"""A foolbox attack as one of ours: it knows its ball, draws from the generator and runs at any radius."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from excite.attacks.protocol import Attack, Norm, check_ball, in_words
from excite.errors import InputError

NORMS: dict[float, Norm] = {2.0: "l2", float("inf"): "linf"}  # by foolbox's p


def of_foolbox(attack: object) -> bool:
    """Whether it is an attack of foolbox, which need not be installed to ask."""
    kind = attack if isinstance(attack, type) else type(attack)
    return kind.__module__.split(".")[0] == "foolbox"


@dataclass(frozen=True, repr=False)
class FromFoolbox(Attack):
    """`attack` in a ball of radius `eps`, of the norm that the attack has."""

    attack: Any
    eps: float

    def __post_init__(self) -> None:
        if isinstance(self.attack, type):
            raise InputError(f"{self.attack.__name__} is a class; pass an attack: {self.attack.__name__}().")
        check_ball(self.eps, self.norm or "l2")

    @property
    def norm(self) -> Norm | None:  # type: ignore[override]
        try:
            return NORMS.get(float(self.attack.distance.p))
        except (AttributeError, ValueError):  # some are of another distance, or have none until they are given one
            return None

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        import foolbox

        with torch.random.fork_rng():  # foolbox draws from torch's own generator
            if generator is not None:
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
            _, clipped, _ = self.attack(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=self.eps)
        found: Tensor = clipped
        return found

    def passes(self, classes: int) -> float:  # noqa: ARG002
        raise InputError(f"Nobody knows the passes of {self}: foolbox does not count them.")

    def __str__(self) -> str:
        """With its options: what a resumed evaluation is held against."""
        plain = {name: value for name, value in vars(self.attack).items() if isinstance(value, int | float | str)}
        options = ", ".join(f"{name}={value}" for name, value in plain.items())
        ball = in_words(self.eps, self.norm) if self.norm else f"ε = {self.eps:g}"
        return f"foolbox {type(self.attack).__name__}({options}), {ball}"

    __repr__ = __str__
