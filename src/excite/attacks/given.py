"""Turn whatever a user passes as an attack into an `Attack`: a name, a TOML table, or a function."""

import contextlib
import functools
import hashlib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from excite.attacks.geometry import Norm
from excite.attacks.protocol import Attack, AttackFunction, Ladder, check_ball, default_generator, takes_no_eps
from excite.errors import InputError
from excite.quantities import number
from excite.registry import kind_and_options, lookup

RESERVED = {"clean", "worst"}  # names that a result uses itself

Radius = float | str | Sequence[float | str]
OneAttack = Attack | AttackFunction | str | Mapping[str, Any]
Attacks = OneAttack | Mapping[str, OneAttack] | Sequence[OneAttack]


def as_attacks(given: Attacks, eps: Radius | None = None) -> dict[str, Attack]:
    """The attacks by name. `eps` is the radius of those that have none, or a list of radii for all of them.

    An attack is an `Attack`, a function (model, x, y[, generator]) -> x_adv, a name such as "pgd", or a mapping with
    its `kind` and options, as in an experiment's TOML file. Pass one, a list, or a mapping from names.

    >>> {name: str(attack) for name, attack in as_attacks(["fgsm"], eps="8/255").items()}
    {'fgsm': 'PGD-1, L∞ ε = 8/255, step 8/255'}
    """
    if isinstance(eps, Sequence) and not isinstance(eps, str):
        radii = tuple(map(number, eps))
        attacks = _by_name(given, radii[-1] if radii else None)
        return {name: Ladder(attack, radii) for name, attack in attacks.items()}
    attacks = _by_name(given, eps)
    if eps is not None and attacks and not any(attack.eps == number(eps) for attack in attacks.values()):
        raise InputError(
            f"eps={eps} would be ignored: {', '.join(map(str, attacks.values()))} has its own radius or takes none. "
            f"Leave eps out, pass eps=[{eps}] to run every attack at that radius, or give your own attack a parameter "
            "`eps`."
        )
    return attacks


def named_attacks(names: Sequence[str], options: Mapping[str, Any]) -> dict[str, Attack]:
    """Create each named attack with the options that it takes; an option that none of them takes is refused."""
    from excite.attacks import ATTACKS, create

    given = {option: value for option, value in options.items() if value is not None}
    taken = {name: inspect.signature(lookup("attack", ATTACKS, name)).parameters.keys() & given for name in names}
    if ignored := given.keys() - set().union(*taken.values()):
        raise InputError(f"None of {', '.join(names)} takes {', '.join(sorted(ignored))}; leave it out.")
    if "eps" not in given:
        raise InputError("The attacks need a radius: add --eps, such as --eps 8/255.")
    return {name: create(name, **{option: given[option] for option in chosen}) for name, chosen in taken.items()}


def as_attack(attack: Attack | AttackFunction) -> Attack:
    """`attack` itself, or a plain function as an attack, such as `partial(attacks.pgd, eps=…, step=…)`.

    >>> from excite import attacks
    >>> as_attack(functools.partial(attacks.pgd, eps=0.1, step=0.05)).eps
    0.1
    """
    return attack if isinstance(attack, Attack) else FromFunction(attack)


def _by_name(given: Attacks, eps: float | str | None) -> dict[str, Attack]:
    if isinstance(given, Mapping) and not isinstance(given.get("kind"), str):
        if reserved := RESERVED & given.keys():
            raise InputError(f'An attack cannot be called "{reserved.pop()}": results have a column of that name.')
        return {str(name): _attack(value, eps, f"attacks.{name}") for name, value in given.items()}
    single = isinstance(given, Attack | str | Mapping) or callable(given) or not isinstance(given, Sequence)
    attacks: dict[str, Attack] = {}
    for value in [given] if single else given:  # type: ignore[union-attr]
        name = value if isinstance(value, str) else str(value.get("kind")) if isinstance(value, Mapping) else ""
        attack = _attack(value, eps, "attacks")
        name = name or str(attack)
        numbered = (f"{name} ({n})" for n in range(2, 1000))
        attacks[next(free for free in (name, *numbered) if free not in attacks)] = attack
    return attacks


def _attack(value: Any, eps: float | str | None, where: str) -> Attack:
    from excite.attacks import create

    if isinstance(value, Attack):
        return value
    if isinstance(value, str):
        value = {"kind": value}
    if isinstance(value, Mapping):
        kind, options = kind_and_options(where, value)
        return create(kind, **({} if eps is None else {"eps": eps}) | options)
    if eps is not None and callable(value) and not isinstance(value, type):
        parameter = inspect.signature(value).parameters.get("eps")
        if parameter is not None and parameter.default is parameter.empty:
            value = functools.partial(value, eps=number(eps))
    return as_attack(value)


@dataclass(frozen=True, repr=False)
class FromFunction(Attack):
    """A plain function as an attack. Its ball is known if it has `eps` and `norm`, as attributes or set arguments."""

    function: AttackFunction
    eps: float | None = field(init=False)
    norm: Norm | None = field(init=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError(f"{self.function!r} is not an attack; pass a function (model, x, y, generator) -> x_adv.")
        if isinstance(self.function, type):
            raise InputError(f"{self.function.__name__} is a class; pass an attack, {self.function.__name__}(…).")
        for parameter in list(self._parameters.values())[3:]:
            variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if not variable and parameter.default is parameter.empty and parameter.name != "generator":
                raise InputError(
                    f'The attack {self} also needs "{parameter.name}"; set it with functools.partial. Random numbers '
                    "come from a parameter `generator`."
                )
        eps, norm = self._known("eps"), self._known("norm")
        object.__setattr__(self, "eps", float(eps) if isinstance(eps, Real) else None)
        object.__setattr__(self, "norm", norm if norm in get_args(Norm) else None)
        if self.eps is not None and self.norm is not None:
            check_ball(self.eps, self.norm)

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    def _known(self, name: str) -> Any:
        return getattr(self.function, name, getattr(self._parameters.get(name), "default", None))

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        options = {"generator": generator or default_generator()} if "generator" in self._parameters else {}
        return self.function(model, x, y, **options)

    def at(self, eps: float) -> "FromFunction":
        if "eps" not in self._parameters:
            raise takes_no_eps(self)
        return FromFunction(functools.partial(self.function, eps=eps))

    def __str__(self) -> str:
        return _words(self.function)

    def __repr__(self) -> str:
        """Equal in every process for the same attack and options: a resumed evaluation recognizes its attacks by it."""
        return f"{self} {hashlib.sha256(_contents(self.function).encode()).hexdigest()[:16]}"


def _contents(function: object) -> str:
    """What a function does and holds: its source, its closure or attributes, and the arguments of a partial."""
    if isinstance(function, functools.partial):
        return f"{_contents(function.func)} {_hashed_repr((function.args, function.keywords))}"
    closure = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    source = ""
    with contextlib.suppress(OSError, TypeError):  # it was typed into an interpreter, or is not Python
        source = inspect.getsource(function if inspect.isroutine(function) else type(function))
    return source + _hashed_repr((closure, getattr(function, "__dict__", None)))


def _hashed_repr(values: object) -> str:
    """A repr without memory addresses; tensors, arrays and models are hashed, because their repr omits most values."""

    def hashed(value: object) -> object:
        match value:
            case nn.Module():
                return f"{value} {fingerprint([*value.parameters(), *value.buffers()])}"
            case Tensor() | np.ndarray():
                return fingerprint([torch.as_tensor(value)])
        return value

    return _without_addresses(repr(tree_map(hashed, values)))


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A hash of their shapes, types and values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _without_addresses(words: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", words)


def _words(function: AttackFunction) -> str:
    if isinstance(function, functools.partial):
        options = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        return _without_addresses(f"{_words(function.func)}({', '.join(options)})")
    if hasattr(function, "__dataclass_fields__"):
        return _without_addresses(repr(function))
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
