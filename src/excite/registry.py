"""Build an object from its name and options, and check both first."""

import inspect
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from excite.errors import InputError, unknown
from excite.quantities import number

T = TypeVar("T")

LONGEST_NAME = 100  # bytes: file systems allow 255, and several names may become one


def check_name(kind: str, name: str, *, for_files: bool = True) -> None:
    """Refuse a name that would break a table or, with `for_files`, point to another folder."""
    problem = ""
    if not 0 < (size := len(name.encode("utf-8", "replace"))) <= LONGEST_NAME:
        problem = f"a name has 1 to {LONGEST_NAME} bytes, not {size} (a letter takes one to four)"
    elif not name.isprintable() or name != name.strip():
        problem = "a name must not contain line breaks or control characters, or begin or end with a space"
    elif for_files and (name in (".", "..") or "/" in name or "\\" in name):
        problem = "it becomes the name of a folder, so it must not be a path"
    if problem:
        raise InputError(f"The {kind} cannot be called {name[:LONGEST_NAME]!r}: {problem}. Give it another name.")


def short_name(name: str) -> str:
    """Return a name for a file; the end of one that is too long becomes a hash of the whole."""
    whole = name.encode("utf-8", "replace")
    cut = f"{whole[:80].decode(errors='ignore')}-{sha256(whole).hexdigest()[:16]}"
    return name if len(whole) <= LONGEST_NAME else cut


def lookup(kind: str, registry: Mapping[str, T], name: str) -> T:
    if name not in registry:
        raise unknown(kind, name, registry)
    return registry[name]


def check_choice(kind: str, choices: object, name: str) -> None:
    """Refuse a value that the Literal `choices` does not contain.

    >>> check_choice("colour", Literal["red", "green"], "blue")
    Traceback (most recent call last):
        ...
    excite.errors.InputError: There is no colour "blue". Known: red, green.
    """
    lookup(kind, dict.fromkeys(get_args(choices)), name)


def kind_and_options(where: str, table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split a table such as { kind = "pgd", eps = "8/255" } into the arguments of `build`."""
    options = dict(table)
    if "kind" not in options:
        raise InputError(f'"{where}" needs a kind, for instance {where} = {{ kind = "…", … }}.')
    return str(options.pop("kind")), options


def build(
    kind: str, registry: Mapping[str, Callable[..., T]], name: str, options: Mapping[str, Any], **given: Any
) -> T:
    """Call the factory `name` with the user's `options`, which must fit its signature, and our own arguments `given`.

    A number may be text such as "8/255".

    >>> build("power", {"integer": lambda *, base, exponent=2: base**exponent}, "integer", {"base": 3})
    9
    """
    factory = lookup(kind, registry, name)
    parameters = {
        parameter.name: parameter
        for parameter in inspect.signature(factory, eval_str=True).parameters.values()
        if parameter.name not in given and parameter.kind is not parameter.VAR_KEYWORD
    }
    for option in options:
        if option not in parameters:
            raise unknown(f"option of the {kind} {name}", option, parameters)
    for parameter in parameters.values():
        if parameter.name not in options and parameter.default is parameter.empty:
            raise InputError(f'The {kind} {name} also needs "{parameter.name}".')
    fitting = {
        option: _fitting(f'"{option}" of the {kind} {name}', value, parameters[option].annotation)
        for option, value in options.items()
    }
    return factory(**given, **fitting)


def _fitting(what: str, value: Any, annotation: Any) -> Any:
    """Return the value as the type that the factory asks for."""
    if annotation is inspect.Parameter.empty:
        return value
    if get_origin(annotation) is Literal and value not in (choices := get_args(annotation)):
        raise InputError(f"{what} is {value!r}; choose one of {', '.join(map(str, choices))}.")
    try:
        value = number(value) if isinstance(value, str) and float in (annotation, *get_args(annotation)) else value
        msgspec.convert(value, annotation)
    except (InputError, msgspec.ValidationError) as error:
        raise InputError(f"{what} does not fit: {str(error).removesuffix('.')}.") from error
    return value
