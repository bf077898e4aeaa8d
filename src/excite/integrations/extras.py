"""A package that only an extra brings: where it is missing, say what to install."""

import contextlib
from collections.abc import Iterator

from excite.errors import ExciteError

__all__ = ["MissingExtraError"]


class MissingExtraError(ExciteError, ImportError):
    """An optional package is not installed."""

    exit_code = 2


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports inside that fail become an error with the command that cures it.

    >>> with extra("lightning"):
    ...     import nothing_like_it
    Traceback (most recent call last):
    ...
    excite.integrations.extras.MissingExtraError: nothing_like_it is missing. Run: pip install "excite[lightning]"
    """
    try:
        yield
    except ImportError as error:
        missing = error.name or str(error)
        raise MissingExtraError(f'{missing} is missing. Run: pip install "excite[{name}]"', name=error.name) from error
