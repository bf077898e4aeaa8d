"""Show messages and progress on stderr: bars on a terminal, plain lines elsewhere."""

import contextlib
import logging
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
SECONDS_OF_SPEED = 600.0  # that the time left is estimated from


class Speaker(Protocol):
    """What stages report to: messages, and tasks with progress."""

    def say(self, text: str) -> None: ...
    def task(self, title: str) -> AbstractContextManager[OnProgress]: ...


class Console:
    """Prints messages and progress unless `quiet`, and always appends them to `log_file`, if there is one.

    rich respects NO_COLOR and dumb terminals.
    """

    def __init__(self, *, quiet: bool = False, log_file: logging.Handler | None = None) -> None:
        self.rich = RichConsole(file=sys.stderr, highlight=False)
        self.quiet, self.log_file = quiet, log_file

    def _keep(self, text: str) -> None:
        if self.log_file:
            self.log_file.handle(logging.makeLogRecord({"msg": printable(text)}))

    def say(self, text: str) -> None:
        self._keep(text)
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
        if self.quiet and not self.log_file:
            yield lambda _done, _total: None
            return
        title, started, has_bar = printable(title), time.perf_counter(), self.rich.is_terminal and not self.quiet
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = Progress(
            *columns,
            TimeRemainingColumn(),
            console=self.rich,
            transient=True,
            disable=not has_bar,
            speed_estimate_period=SECONDS_OF_SPEED,
            get_time=time.perf_counter,
        )
        last_line = started
        line = self._keep if has_bar else self.say
        line(title)

        def update(done: int, total: int) -> None:
            nonlocal last_line
            if done < bar.tasks[0].completed:  # another attack on the same images
                bar.reset(number)
            bar.update(number, completed=done, total=total)
            now = time.perf_counter()
            if now - last_line >= SECONDS_BETWEEN_LINES:
                last_line, left = now, bar.tasks[0].time_remaining  # None until there are two reports
                words = "" if left is None else f", about {left:.0f} s left"
                line(f"{title}: {done} of {total}{words}")

        with bar:
            number = bar.add_task(title, total=None)
            yield update
        self.say(f"{title}, done in {time.perf_counter() - started:.1f} s")


def progress_bar(title: str, on_progress: OnProgress | None) -> AbstractContextManager[OnProgress]:
    """`on_progress` if it is given; else a bar on a terminal, and nothing elsewhere."""
    if on_progress is not None:
        return contextlib.nullcontext(on_progress)
    return Console(quiet=not sys.stderr.isatty()).task(title)


@dataclass(frozen=True)
class Placed:
    """A console that prefixes every task with its place in the whole: "seed 1 of 2", "stage 3 of 7"."""

    console: Speaker
    where: str

    def say(self, text: str) -> None:
        self.console.say(text)

    def task(self, title: str) -> AbstractContextManager[OnProgress]:
        return self.console.task(f"{self.where}, {title}")
