"""Attacks as people give them: by name, as a table of a TOML file, as a function, one or several; all become ours."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from excite.attacks import ATTACKS, create
from excite.attacks.from_foolbox import FromFoolbox, of_foolbox
from excite.attacks.function import as_attack, at_radius
from excite.attacks.ladder import on_ladder
from excite.attacks.protocol import Attack, AttackFunction
from excite.errors import InputError
from excite.quantities import number
from excite.registry import kind_and_options, lookup

TAKEN = {"clean", "worst"}  # what a result calls the accuracy without any attack, and under all of them

Radius = float | str | Sequence[float | str]
OneAttack = Attack | AttackFunction | str | Mapping[str, Any]
Attacks = OneAttack | Mapping[str, OneAttack] | Sequence[OneAttack]


def as_attacks(given: Attacks, eps: Radius | None = None) -> dict[str, Attack]:
    """The attacks by name. `eps` is the radius of those that have none of their own, or radii for all of them.

    An attack is one of ours, a function (model, x, y[, generator]) -> x_adv, a foolbox attack, a name such as "pgd" or
    "fgsm", or a mapping with its `kind` and options, as in an experiment's TOML file; one, a list, or a mapping.

    >>> {name: str(attack) for name, attack in as_attacks(["fgsm"], eps="8/255").items()}
    {'fgsm': 'PGD-1, L∞ ε = 8/255, step 8/255'}
    """
    if isinstance(eps, Sequence) and not isinstance(eps, str):
        radii = [number(radius) for radius in eps]
        largest = radii[-1] if radii else None
        return {name: on_ladder(attack, radii) for name, attack in _by_name(given, largest).items()}
    known = _by_name(given, eps)
    if eps is not None and known and not any(attack.eps == number(eps) for attack in known.values()):
        raise InputError(
            f"eps={eps} would be ignored: {', '.join(map(str, known.values()))} has a radius of its own or takes none. "
            f"Leave it out, or pass eps=[{eps}] to run every attack at that radius."
        )
    return known


def _by_name(given: Attacks, eps: float | str | None) -> dict[str, Attack]:
    if isinstance(given, Mapping) and not isinstance(given.get("kind"), str):
        if reserved := TAKEN & given.keys():
            raise InputError(f'No attack can be called "{reserved.pop()}": results have a column of that name.')
        return {str(name): _attack(value, eps, f"attacks.{name}") for name, value in given.items()}
    single = isinstance(given, Attack | str | Mapping) or callable(given) or not isinstance(given, Sequence)
    known: dict[str, Attack] = {}
    for value in [given] if single else given:  # type: ignore[union-attr]
        name = value if isinstance(value, str) else str(value.get("kind")) if isinstance(value, Mapping) else ""
        attack = _attack(value, eps, "attacks")
        known[_unused(name or str(attack), known)] = attack
    return known


def named_attacks(names: Sequence[str], options: Mapping[str, Any]) -> dict[str, Attack]:
    """Each named attack with those of the options that it takes; one that none takes is refused."""
    given = {option: value for option, value in options.items() if value is not None}
    taken = {name: inspect.signature(lookup("attack", ATTACKS, name)).parameters.keys() & given for name in names}
    if ignored := given.keys() - set().union(*taken.values()):
        raise InputError(f"None of {', '.join(names)} takes {', '.join(sorted(ignored))}; leave it out.")
    return {name: create(name, **{option: given[option] for option in own}) for name, own in taken.items()}


def _unused(name: str, taken: Mapping[str, object]) -> str:
    return next(one for one in (name, *(f"{name} ({n})" for n in range(2, 1000))) if one not in taken)


def _attack(value: Any, eps: float | str | None, where: str) -> Attack:
    if isinstance(value, Attack):
        return value
    if isinstance(value, str):
        value = {"kind": value}
    if isinstance(value, Mapping):
        kind, options = kind_and_options(where, value)
        return create(kind, **({} if eps is None else {"eps": eps}) | options)
    if of_foolbox(value):
        if eps is None:
            raise InputError("A foolbox attack needs its radius: pass eps, for instance eps=8/255.")
        return FromFoolbox(value, number(eps))
    if eps is not None and callable(value) and not isinstance(value, type):
        value = at_radius(value, number(eps))
    return as_attack(value)
