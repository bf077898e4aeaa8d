"""Every error that a user can cause or fix, each with the exit code of the command line."""

import difflib
from collections.abc import Iterable


class ExciteError(Exception):
    """An error that the user can fix; the message says what was wrong and what to do."""

    exit_code = 1


class InputError(ExciteError, ValueError):
    """An invalid argument, configuration or data file."""

    exit_code = 2


class DivergedError(ExciteError):
    """Training diverged: the loss is not finite, or has risen above its initial value."""

    exit_code = 3


class DataUnavailableError(ExciteError):
    """A data set that could not be obtained from any source."""

    exit_code = 4


class CorruptFileError(ExciteError):
    """A file whose contents do not match their recorded hash or format."""

    exit_code = 5


class UnidentifiedError(ExciteError):
    """L is not identified, and `allow_unidentified` is not set."""

    exit_code = 6


class InterruptedRunError(ExciteError):
    """SIGINT or SIGTERM stopped the run, after it was saved."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for an unknown name, with a suggestion if a known name is similar.

    >>> print(unknown("model", "resnet", ["lenet5", "resnet20"]))
    There is no model "resnet"; did you mean "resnet20"? Known: lenet5, resnet20.
    >>> print(unknown("model", "vit", ["lenet5", "resnet20"]))
    There is no model "vit". Known: lenet5, resnet20.
    """
    known = list(known)
    if not known:
        return InputError(f'There is no {kind} "{name}"; none is allowed here. Leave it out.')
    nearest = difflib.get_close_matches(str(name).lower(), known, n=1)
    suggestion = f'; did you mean "{nearest[0]}"?' if nearest else "."
    return InputError(f'There is no {kind} "{name}"{suggestion} Known: {", ".join(known)}.')


def printable(text: str) -> str:
    r"""Return text that is safe to print: control characters are escaped, except line breaks and tabs.

    >>> print(printable("a \x1b[31mred\x1b[0m ε\nline"))
    a \x1b[31mred\x1b[0m ε
    line
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
