"""Parse, check and format numbers: 8/255 as well as 0.031."""

from collections.abc import Callable
from fractions import Fraction
from numbers import Integral, Real

from excite.errors import InputError

OnProgress = Callable[[int, int], None]  # called with (done, total)


def number(given: float | str) -> float:
    """Parse a number or a fraction.

    >>> number("8/255") == number(8 / 255)
    True
    """
    if not isinstance(given, str):
        check_number("The number", given)
        return given
    try:
        numerator, *denominators = [float(Fraction(part.strip())) for part in given.split("/")]
        (denominator,) = denominators or [1.0]
        return numerator / denominator
    except (ValueError, ArithmeticError) as error:
        raise InputError(f'"{given}" is not a number; write for example 0.031 or 8/255.') from error


def check_whole(name: str, value: object, *, least: int | None = None) -> None:
    """Raise InputError unless the value is an integer, and at least `least`.

    >>> check_whole("epochs", 2.5, least=1)
    Traceback (most recent call last):
        ...
    excite.errors.InputError: epochs is 2.5; it must be an integer, at least 1.
    """
    if type(value) is bool or not isinstance(value, Integral) or (least is not None and int(value) < least):
        bound = "" if least is None else f", at least {least}"
        raise InputError(f"{name} is {value!r}; it must be an integer{bound}.")


def check_number(name: str, value: object) -> None:
    """Raise InputError unless the value is a real number; any range is checked by the caller."""
    if type(value) is bool or not isinstance(value, Real):
        raise InputError(f"{name} is {value!r}; it must be a number, such as 0.1.")


def check_positive(name: str, value: float) -> None:
    """Raise InputError unless the value is a finite number above 0.

    >>> check_positive("multiple", -1)
    Traceback (most recent call last):
        ...
    excite.errors.InputError: multiple is -1; it must be a finite number above 0, such as 0.1.
    """
    check_number(name, value)
    if not 0 < value < float("inf"):
        raise InputError(f"{name} is {value}; it must be a finite number above 0, such as 0.1.")


def check_kind(name: str, value: object, attribute: str, wanted: str) -> None:
    """Raise InputError unless the value has the `attribute` that identifies the `wanted` kind of object.

    >>> check_kind("model", "lenet5", "parameters", "a torch module")
    Traceback (most recent call last):
        ...
    excite.errors.InputError: model is 'lenet5'; pass a torch module.
    """
    if not hasattr(value, attribute) or isinstance(value, type):
        raise InputError(f"{name} is {str(value)[:80]!r}; pass {wanted}.")


MODULE = "a torch module"


def duration(seconds: float) -> str:
    """Format seconds with two digits, in the largest unit that fits.

    >>> duration(200), duration(4e6)
    ('3.3 min', '46 days')
    """
    for unit, length in (("years", 365.25 * 86400), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{_two_digits(seconds / length)} {unit}"
    return f"{_two_digits(seconds)} s"


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}" if value < 100 else f"{value:,.0f}"


def pixels(eps: float) -> str:
    """Format ε as a multiple of 1/255 where that is usual: 8/255 rather than 0.03137, but 0.2.

    >>> pixels(8 / 255), pixels(0.2), pixels(0.1)
    ('8/255', '0.2', '0.1')
    """
    steps = eps * 255
    whole = steps > 0.5 and abs(steps - round(steps)) < 1e-6 and eps != round(eps, 1)
    return f"{round(steps)}/255" if whole else f"{eps:g}"
