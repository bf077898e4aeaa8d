"""Read numbers as people write them: 8/255 as well as 0.031."""

from fractions import Fraction

from excite.errors import InputError


def number(text: str) -> float:
    """
    >>> number("8/255") == 8 / 255
    True
    """
    try:
        numerator, *denominators = [float(Fraction(part.strip())) for part in text.split("/")]
        (denominator,) = denominators or [1.0]
        return numerator / denominator
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f'"{text}" is not a number; write for instance 0.031 or 8/255.') from error
