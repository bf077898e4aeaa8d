"""Attacks, as functions for your own code, and by name for experiment files and the command line."""

from collections.abc import Callable
from typing import Any

from excite.attacks.auto_attack import MEMBERS, AutoAttack
from excite.attacks.fast_model import fast_inference
from excite.attacks.given import as_attack
from excite.attacks.minimum_norm import FMN, fmn
from excite.attacks.projected_gradient import PGD, fgsm, pgd
from excite.attacks.protocol import Attack, AttackWarning, Ladder
from excite.attacks.saving import save_images
from excite.quantities import number
from excite.registry import build

__all__ = [
    "ATTACKS",
    "FMN",
    "PGD",
    "Attack",
    "AttackWarning",
    "AutoAttack",
    "as_attack",
    "create",
    "fast_inference",
    "fmn",
    "pgd",
    "save_images",
]

ATTACKS: dict[str, Callable[..., Attack]] = {"pgd": PGD, "fgsm": fgsm, "autoattack": AutoAttack, **MEMBERS, "fmn": FMN}


def create(name: str, **options: Any) -> Attack:
    """Create the attack `name` with its options; `eps` may be a list of increasing radii, for a curve.

    Call it as `attack(model, x, y)`; random choices then have seed 0, or come from a generator that you pass fourth.

    >>> str(create("pgd", eps="8/255", steps=10))
    'PGD-10, L∞ ε = 8/255, step 2/255'
    """
    radii = options.get("eps")
    if isinstance(radii, list | tuple) and radii:
        radii = tuple(map(number, radii))
        return Ladder(build("attack", ATTACKS, name, {**options, "eps": radii[-1]}), radii)
    return build("attack", ATTACKS, name, options)
