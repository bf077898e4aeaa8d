"""Attacks by name: functions for strangers, one registry for experiment files and the command line."""

import functools
from collections.abc import Callable
from typing import Any, get_args

from excite.attacks.autoattack import AutoAttack, AutoAttackMember, Member, autoattack
from excite.attacks.fast_model import fast_inference
from excite.attacks.pgd import PGD, pgd
from excite.attacks.protocol import Attack, Cascade
from excite.registry import build

__all__ = ["ATTACKS", "PGD", "Attack", "AutoAttack", "Cascade", "autoattack", "create", "fast_inference", "pgd"]

ATTACKS: dict[str, Callable[..., Attack]] = {
    "pgd": PGD,
    "autoattack": AutoAttack,
    **{member: functools.partial(AutoAttackMember, member) for member in get_args(Member)},
}


def create(name: str, **options: Any) -> Attack:
    """The attack `name` with its options set.

    >>> str(create("pgd", eps=8 / 255, step=2 / 255))
    'PGD-20, L∞ ε = 8/255, step 2/255'
    """
    return build("attack", ATTACKS, name, options)
