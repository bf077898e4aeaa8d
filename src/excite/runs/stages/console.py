"""Where the stages say how far they are."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


class Console(Protocol):
    """Lines, and tasks that know how far they are."""

    def say(self, text: str) -> None: ...
    def task(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


@dataclass(frozen=True)
class Placed:
    """A console that says before every task where in a larger whole it is: "seed 1 of 2", "stage 3 of 7"."""

    console: Console
    where: str

    def say(self, text: str) -> None:
        self.console.say(text)

    def task(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return self.console.task(f"{self.where}, {title}")
