"""Show messages and progress on stderr: bars on a terminal, plain lines elsewhere."""

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from excite.errors import printable
from excite.quantities import OnProgress

SECONDS_BETWEEN_LINES = 15.0
SECONDS_BETWEEN_UPDATES = 0.1


class Speaker(Protocol):
    """What stages report to: messages, and tasks with progress."""

    def say(self, text: str) -> None: ...
    def task(self, title: str) -> AbstractContextManager[OnProgress]: ...


class Console:
    """Prints messages and progress unless `quiet`. rich respects NO_COLOR and dumb terminals."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.rich = RichConsole(file=sys.stderr, highlight=False)
        self.quiet = quiet

    def say(self, text: str) -> None:
        if self.quiet:
            return
        text = printable(text)
        if self.rich.is_terminal:
            self.rich.print(text, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)  # not wrapped, so that logs can be searched by line

    @contextlib.contextmanager
    def task(self, title: str) -> Iterator[OnProgress]:
        """Yield a function that reports progress, `(done, total)`; it may be called at every step."""
        title = printable(title)
        started = time.perf_counter()
        if self.quiet:
            yield lambda _done, _total: None
            return
        with self._bar(title) if self.rich.is_terminal else self._lines(title) as update:
            yield update
        self.say(f"{title}, done in {time.perf_counter() - started:.1f} s")

    @contextlib.contextmanager
    def _bar(self, title: str) -> Iterator[OnProgress]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=self.rich, transient=True) as progress:
            task = progress.add_task(title, total=None)
            yield _at_most_every(
                SECONDS_BETWEEN_UPDATES, lambda done, total: progress.update(task, completed=done, total=total)
            )

    @contextlib.contextmanager
    def _lines(self, title: str) -> Iterator[OnProgress]:
        self.say(title)
        began, first, before = 0.0, 0, math.inf  # a resumed task does not start at 0

        def line(done: int, total: int) -> None:
            left = (time.perf_counter() - began) * (total - done) / max(done - first, 1)
            self.say(f"{title}: {done} of {total}" + (f", about {left:.0f} s left" if done > first else ""))

        show = _at_most_every(SECONDS_BETWEEN_LINES, line)

        def update(done: int, total: int) -> None:
            nonlocal began, first, before
            if done < before:  # the first call, or another attack on the same images
                began, first = time.perf_counter(), done
            before = done
            show(done, total)

        yield update


@dataclass(frozen=True)
class Placed:
    """A console that prefixes every task with its place in the whole: "seed 1 of 2", "stage 3 of 7"."""

    console: Speaker
    where: str

    def say(self, text: str) -> None:
        self.console.say(text)

    def task(self, title: str) -> AbstractContextManager[OnProgress]:
        return self.console.task(f"{self.where}, {title}")


def _at_most_every(seconds: float, show: OnProgress) -> OnProgress:
    """Limit calls of `show` to one per `seconds`."""
    last = time.perf_counter()

    def update(done: int, total: int) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= seconds:
            last = now
            show(done, total)

    return update
