"""Every error a user can cause or cure, each with the exit code it leaves the command line with."""

import difflib
from collections.abc import Iterable


class ExciteError(Exception):
    """Something the user can cure; the message says what was wrong and how."""

    exit_code = 1


class InputError(ExciteError, ValueError):
    """An argument, a configuration or a data file that does not fit."""

    exit_code = 2


class DivergedError(ExciteError):
    """Training lost its way: a non-finite loss, or a loss back above its initial value."""

    exit_code = 3


class DataUnavailableError(ExciteError):
    """A data set that no source could give."""

    exit_code = 4


class CorruptFileError(ExciteError):
    """A file whose contents do not match their recorded hash or format."""

    exit_code = 5


class UnidentifiedError(ExciteError):
    """L is not identified, and nobody asked to train at it all the same."""

    exit_code = 6


class InterruptedRunError(ExciteError):
    """SIGINT or SIGTERM arrived; the run was saved first."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a registry, with a near one that is, if there is any.

    >>> print(unknown("model", "resnet", ["lenet5", "resnet20"]))
    There is no model "resnet"; did you mean "resnet20"? Known: lenet5, resnet20.
    >>> print(unknown("model", "vit", ["lenet5", "resnet20"]))
    There is no model "vit". Known: lenet5, resnet20.
    """
    known = list(known)
    if not known:
        return InputError(f'There is no {kind} "{name}", nor any other: leave it out.')
    nearest = difflib.get_close_matches(str(name).lower(), known, n=1)
    suggestion = f'; did you mean "{nearest[0]}"?' if nearest else "."
    return InputError(f'There is no {kind} "{name}"{suggestion} Known: {", ".join(known)}.')


def printable(text: str) -> str:
    r"""Text for a terminal: what a stranger's name or file would do to it is shown instead of done.

    >>> print(printable("a \x1b[31mred\x1b[0m ε\nline"))
    a \x1b[31mred\x1b[0m ε
    line
    """
    shown = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)
