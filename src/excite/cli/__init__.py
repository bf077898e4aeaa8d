"""The command line: one file per group of commands, no logic; torch is imported only by the commands that need it."""

import contextlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click

import excite
from excite.cli import attacks, completion, data, estimates, export, reports, runs, verify
from excite.errors import DivergedError, ExciteError, InterruptedRunError, printable

COMMANDS: tuple[click.Command, ...] = (
    runs.run,
    runs.sweep,
    runs.train,
    estimates.estimate,
    estimates.certify,
    estimates.batch_size,
    attacks.attack,
    attacks.pseudo_label,
    reports.report,
    reports.figure,
    reports.list_,
    export.export,
    verify.verify,
    data.data,
    completion.completion,
)

EPILOG = """\b
Exit codes: 0 done, 1 other error, 2 wrong input, 3 training diverged, 4 data not to be had, 5 corrupt file,
6 L not identified, 130 interrupted (Ctrl-C), 143 terminated. A stopped run is saved: the same command continues it."""


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        """Here, because click would end with 1."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)


@click.group(
    cls=_Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(excite.__version__, prog_name="excite")
@click.pass_context
def cli(context: click.Context) -> None:
    """Learning rates that make neural networks robust: find L, train at 1/L and 2/L, attack, compare."""
    if _processes() > 1 and context.invoked_subcommand != "train":
        raise click.UsageError(
            "torchrun is for `excite train`: train each arm with it, then give this command without torchrun; "
            "what is trained is not trained again."
        )


for _command in COMMANDS:
    cli.add_command(_command)


A_MOMENT = 0.05  # seconds, in which a finaliser comes to its end
_KEPT = "; finished stages are kept, the same command goes on from there."


class _Stderr(logging.Handler):
    """Writes to what stderr is at the time: a progress bar stands in for it while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(printable(self.format(record)), err=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: logs go to stderr, errors become one line there and an exit code."""
    try:
        with _only_first_speaks(), _terminated_in_order():
            logger = logging.getLogger("excite")
            logger.setLevel(logging.INFO)
            if not logger.handlers:
                logger.addHandler(_Stderr())
            sys.exit(cli(arguments, prog_name="excite", standalone_mode=False))
    except click.exceptions.Abort:
        click.echo(f"Interrupted{_KEPT}", err=True)
        sys.exit(130)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        click.echo(printable(said.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    except ExciteError as error:
        concerns_all = isinstance(error, DivergedError | InterruptedRunError)
        if _is_first() or not concerns_all:
            click.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        click.echo(printable(f"error: The operating system refused{where}: {error.strerror or error}."), err=True)
        sys.exit(ExciteError.exit_code)


@contextlib.contextmanager
def _terminated_in_order() -> Iterator[None]:
    """On SIGTERM end as on Ctrl-C: locks are given back, other processes stopped, half-written files removed."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise _Terminated(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, hook = signal.signal(signal.SIGTERM, end), sys.unraisablehook
    sys.unraisablehook = partial(_ask_again, hook)
    try:
        yield
    except _Terminated:
        click.echo(f"Terminated{_KEPT}", err=True)
        raise
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


class _Terminated(SystemExit):
    """SIGTERM arrived outside of training, which ends by itself."""


def _ask_again(hook: Callable[[Any], object], dropped: Any) -> None:
    """Python drops what is raised while an object is finalised: a request to stop that came then is sent again."""
    requests = {_Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
    if request := requests.get(dropped.exc_type):
        threading.Timer(A_MOMENT, os.kill, (os.getpid(), request)).start()
    else:
        hook(dropped)


def _is_first() -> bool:
    """Among the processes that torchrun starts. A RANK alone is a cluster's, whose tasks know nothing of each other."""
    return _processes() == 1 or int(os.environ.get("RANK") or 0) == 0


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


@contextlib.contextmanager
def _only_first_speaks() -> Iterator[None]:
    if _is_first():
        yield
    else:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
