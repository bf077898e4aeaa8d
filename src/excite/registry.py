"""Build what a name and its options describe, checking both before anything runs."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin

import msgspec

from excite.errors import InputError, unknown
from excite.quantities import number

T = TypeVar("T")
P = ParamSpec("P")


LONGEST_NAME = 100


def check_name(kind: str, name: str, *, for_files: bool = True) -> None:
    """Refuse a name that would spoil a table or, `for_files`, lead to another folder than its own."""
    problem = ""
    if not 0 < len(name) <= LONGEST_NAME:
        problem = f"a name has 1 to {LONGEST_NAME} characters, not {len(name)}"
    elif not name.isprintable() or name != name.strip():
        problem = "a name holds no line breaks or control codes, and no space at its ends"
    elif for_files and (name in (".", "..") or "/" in name or "\\" in name):
        problem = "it names a folder, so it is no path"
    if problem:
        raise InputError(f"The {kind} cannot be called {name[:LONGEST_NAME]!r}: {problem}. Give it another name.")


def lookup(kind: str, registry: Mapping[str, T], name: str) -> T:
    if name not in registry:
        raise unknown(kind, name, registry)
    return registry[name]


def check_choice(kind: str, choices: object, name: str) -> None:
    """Refuse what is none of the words of a Literal.

    >>> check_choice("colour", Literal["red", "green"], "blue")
    Traceback (most recent call last):
        ...
    excite.errors.InputError: There is no colour "blue". Known: red, green.
    """
    lookup(kind, dict.fromkeys(get_args(choices)), name)


def kind_and_options(where: str, table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What `build` takes, of a table such as { kind = "pgd", eps = "8/255" }."""
    options = dict(table)
    if "kind" not in options:
        raise InputError(f'"{where}" needs a kind, for instance {where} = {{ kind = "…", … }}.')
    return str(options.pop("kind")), options


def build(
    kind: str, registry: Mapping[str, Callable[..., T]], name: str, options: Mapping[str, Any], **given: Any
) -> T:
    """Call the factory `name`; `given` is the house's, `options` the user's: they must fit the factory's signature.

    A number may be text, as people write it: 8/255.

    >>> build("power", {"integer": lambda *, base, exponent=2: base**exponent}, "integer", {"base": 3})
    9
    """
    factory = lookup(kind, registry, name)
    parameters = [
        parameter
        for parameter in inspect.signature(factory, eval_str=True).parameters.values()
        if parameter.name not in given and parameter.kind is not parameter.VAR_KEYWORD
    ]
    known = [parameter.name for parameter in parameters]
    for option in options:
        if option not in known:
            raise unknown(f"option of the {kind} {name}", option, known)
    fitting = dict(options)
    for parameter in parameters:
        if parameter.name not in options:
            if parameter.default is parameter.empty:
                raise InputError(f'The {kind} {name} also needs "{parameter.name}".')
        elif parameter.annotation is not parameter.empty:
            what, value = f'"{parameter.name}" of the {kind} {name}', options[parameter.name]
            fitting[parameter.name] = _fitting(what, value, parameter.annotation)
    return factory(**given, **fitting)


def _fitting(what: str, value: Any, annotation: Any) -> Any:
    """The value as a factory takes it: of the type that it says."""
    if get_origin(annotation) is Literal and value not in (choices := get_args(annotation)):
        raise InputError(f"{what} is {value!r}; choose one of {', '.join(map(str, choices))}.")
    try:
        value = number(value) if isinstance(value, str) and float in (annotation, *get_args(annotation)) else value
        msgspec.convert(value, annotation)
    except (InputError, msgspec.ValidationError) as error:
        raise InputError(f"{what} does not fit: {str(error).removesuffix('.')}.") from error
    return value


def named_options(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, but a wrong or missing option is an InputError that names the right one; one that hands options on
    to what it names leaves their names to that.

    >>> @named_options
    ... def power(base, *, exponent=2):
    ...     return base**exponent
    >>> power(3, exponnent=3)
    Traceback (most recent call last):
        ...
    excite.errors.InputError: There is no option of power "exponnent"; did you mean "exponent"? Known: base, exponent.
    """
    return _checked(function, function.__name__)


def with_named_options(kind: type[T]) -> type[T]:
    """The class, which refuses wrong options as `named_options` does.

    >>> @with_named_options
    ... class Power:
    ...     def __init__(self, *, exponent=2): ...
    >>> Power(exponnent=3)
    Traceback (most recent call last):
        ...
    excite.errors.InputError: There is no option of Power "exponnent"; did you mean "exponent"? Known: exponent.
    """
    kind.__init__ = _checked(kind.__init__, kind.__name__)  # type: ignore[method-assign]
    return kind


def _checked(function: Callable[P, T], name: str) -> Callable[P, T]:
    signature = inspect.signature(function)
    known = [option for option in signature.parameters if option != "self"]
    hands_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())

    @functools.wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        for option in options:
            if option not in signature.parameters and not hands_on:
                raise unknown(f"option of {name}", option, known)
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            raise InputError(f"{name}(): {error}.") from error
        return function(*args, **options)

    return checked
