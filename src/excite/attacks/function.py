"""A plain function as an attack: what it tells of itself is read from its signature."""

import functools
import hashlib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from excite.attacks.protocol import Attack, AttackFunction, Norm, check_ball
from excite.errors import InputError, unknown
from excite.registry import named_options


def at_radius(function: AttackFunction, eps: float) -> AttackFunction:
    """`function` at this radius, unless it has one of its own or takes none."""
    parameter = _parameters(function).get("eps")
    needs_it = parameter is not None and parameter.default is parameter.empty
    return functools.partial(function, eps=eps) if needs_it else function


@named_options
def as_attack(attack: Attack | AttackFunction) -> Attack:
    """`attack` itself, or what a plain function tells of itself, such as `partial(attacks.pgd, eps=…, step=…)`.

    >>> from excite import attacks
    >>> as_attack(functools.partial(attacks.pgd, eps=0.1, step=0.05)).eps
    0.1
    """
    return attack if isinstance(attack, Attack) else _Function.of(attack)


@dataclass(frozen=True, repr=False)
class _Function(Attack):
    """A function as an attack. Its ball is known from its `eps` and `norm`, attributes or arguments with a value.

    Of a partial, an attribute may also be that of the function below it.
    """

    function: AttackFunction
    eps: float | None
    norm: Norm | None
    generator_as: str | None  # "generator", "" for the fourth argument, None if it takes none

    @classmethod
    def of(cls, function: AttackFunction) -> "_Function":
        if not callable(function):
            raise InputError(f"{function!r} is no attack; pass a function (model, x, y, generator) -> x_adv.")
        if isinstance(function, type):
            raise InputError(f"{function.__name__} is a class; pass an attack, {function.__name__}(…).")
        parameters = _parameters(function)
        rest = [parameter for parameter in list(parameters.values())[3:] if parameter.name != "generator"]
        positional = [parameter for parameter in rest if parameter.kind is not parameter.KEYWORD_ONLY]
        as_fourth = "generator" not in parameters and any(map(_takes_generator, positional[:1]))
        for parameter in rest[1:] if as_fourth else rest:
            if parameter.default is parameter.empty and parameter.kind in (
                parameter.KEYWORD_ONLY,
                parameter.POSITIONAL_OR_KEYWORD,
            ):
                raise InputError(f'The attack {_words(function)} also needs "{parameter.name}".')
        return cls(
            function,
            *_ball(function, parameters),
            "generator" if "generator" in parameters else "" if as_fourth else None,
        )

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.generator_as is None:
            return self.function(model, x, y)
        if self.generator_as == "":
            return self.function(model, x, y, generator)
        return self.function(model, x, y, generator=generator)

    def at(self, eps: float) -> "_Function":
        if "eps" not in _parameters(self.function):
            raise InputError(f"{self} takes no eps, so that it cannot be run at eps={eps:g}; leave the list of ε out.")
        return _Function.of(functools.partial(self.function, eps=eps))

    def passes(self, classes: int) -> float:  # noqa: ARG002
        raise InputError(f"Nobody knows the passes of {self}: make it an Attack that counts them.")

    def __str__(self) -> str:
        return _words(self.function)

    def __repr__(self) -> str:
        """The same in every process for the same attack and options: what a resumed evaluation is held against."""
        inside = hashlib.sha256(_inside(self.function).encode()).hexdigest()
        return f"{self} {inside[:16]}"


def _ball(function: AttackFunction, parameters: Mapping[str, inspect.Parameter]) -> tuple[float | None, Norm | None]:
    """Its radius and norm, as far as they are known."""
    below = function.func if isinstance(function, functools.partial) else None
    eps, norm = (
        [getattr(function, name, None), getattr(parameters.get(name), "default", None), getattr(below, name, None)]
        for name in ("eps", "norm")
    )
    radius = next((float(value) for value in eps if isinstance(value, Real)), None)
    known: Norm | None = next((value for value in norm if value in get_args(Norm)), None)
    if radius is not None and known is not None:
        check_ball(radius, known)
    return radius, known


def _takes_generator(fourth: inspect.Parameter) -> bool:
    """Whatever it is called, unless it is an option with a value."""
    if fourth.name in ("eps", "norm") or fourth.kind is fourth.VAR_KEYWORD:
        return False
    return fourth.default is fourth.empty or fourth.default is None


def _parameters(function: AttackFunction) -> dict[str, inspect.Parameter]:
    if isinstance(function, functools.partial):
        known = list(inspect.signature(function.func).parameters)
        for option in function.keywords:
            if option not in known:
                raise unknown(f"option of the attack {_words(function.func)}", option, known[3:])
    return dict(inspect.signature(function).parameters)


def _inside(function: object) -> str:
    """What it does and knows, without the addresses of objects: code, defaults, values around it, attributes."""
    if isinstance(function, functools.partial):
        return f"{_inside(function.func)} {_words_of((function.args, function.keywords))}"
    code = getattr(function, "__code__", None)
    if code is None:  # an object: its attributes, and what calling it does
        attributes = _words_of(getattr(function, "__dict__", function))
        call = getattr(type(function), "__call__", None)  # noqa: B004
        return f"{attributes} {_inside(call)}" if hasattr(call, "__code__") else attributes
    around = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    constants = [sorted(map(repr, one)) if isinstance(one, frozenset) else one for one in code.co_consts]
    defaults = getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)
    return _words_of((code.co_code, code.co_names, constants, defaults, around))


def _words_of(values: object) -> str:
    """Numbers by their hash: of many, torch and numpy print a few, and of a model's weights nothing."""
    return _anywhere(repr(tree_map(_hashed, values)))


def _hashed(value: object) -> object:
    match value:
        case nn.Module():
            return f"{value} {fingerprint([*value.parameters(), *value.buffers()])}"
        case Tensor():
            return fingerprint([value])
        case np.ndarray():
            return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return value


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A hash of their shapes, types and values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _anywhere(words: str) -> str:
    """Without addresses, which are others in another process."""
    return re.sub(r" at 0x[0-9a-f]+", "", words)


def _words(function: AttackFunction) -> str:
    if isinstance(function, functools.partial):
        options = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        return _anywhere(f"{_words(function.func)}({', '.join(options)})")
    if hasattr(function, "__dataclass_fields__"):
        return _anywhere(repr(function))
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
