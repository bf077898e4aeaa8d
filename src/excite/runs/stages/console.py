"""Where the stages say how far they are."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Console(Protocol):
    """Lines, and tasks that know how far they are."""

    def say(self, text: str) -> None: ...
    def task(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]: ...
