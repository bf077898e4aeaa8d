"""The command line: one file per group of commands; torch is imported only by the commands that need it."""

import codecs
import contextlib
import io
import logging
import os
import platform
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
from excite.cli import folders, runs
from excite.cli.options import close_log_file, is_first, processes
from excite.errors import DivergedError, ExciteError, InterruptedRunError, printable

COMMANDS: tuple[click.Command, ...] = (
    runs.run,
    runs.sweep,
    runs.train,
    folders.estimate,
    folders.certify,
    runs.batch_size,
    folders.attack,
    folders.pseudo_label,
    runs.report,
    runs.figure,
    runs.list_,
    runs.doctor,
    folders.export,
    folders.verify,
    folders.data,
)

EPILOG = """\b
Exit codes:
    0  success
    1  other error
    2  wrong input
    3  training diverged
    4  data unavailable
    5  corrupt file
    6  L is not identified
  130  interrupted (Ctrl-C)
  141  broken pipe
  143  terminated
Interrupted runs are saved: run the same command again to resume.
\b
Shell completion: add eval "$(_EXCITE_COMPLETE=bash_source excite)" to ~/.bashrc (zsh_source, fish_source)."""


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        """Exit with 141 if the output pipe is closed; click would exit with 1."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)


def _version(context: click.Context, _option: click.Parameter, given: bool) -> None:
    if not given or context.resilient_parsing:
        return
    import torch

    from excite.randomness import device_names

    versions = f"excite {excite.__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    click.echo(f"{versions}, devices: {', '.join(device_names())}")
    context.exit()


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(cls=_Commands, commands=COMMANDS, epilog=EPILOG, context_settings=SETTINGS)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show versions.")
@click.pass_context
def cli(context: click.Context) -> None:
    """Learning rates that make neural networks robust: find L, train at 1/L and 2/L, attack, compare."""
    if processes() > 1 and context.invoked_subcommand not in ("run", "train"):
        raise click.UsageError("Only `excite run` and `excite train` run under torchrun. Run this command without it.")


PLAIN = str.maketrans("─−–", "---")
A_MOMENT = 0.05  # seconds, enough for a finalizer to end
_KEPT = ". Finished stages are kept: run the same command again to resume."


class _Stderr(logging.Handler):
    """Writes to the current stderr: a progress bar replaces it while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(printable(self.format(record)), err=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: logs go to stderr, and an error becomes one line there and an exit code."""
    _prepare_streams()
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
        message = io.StringIO()
        error.show(message)
        click.echo(printable(message.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    except ExciteError as error:
        same_everywhere = isinstance(error, DivergedError | InterruptedRunError)  # in all processes of torchrun
        if is_first() or not same_everywhere:
            logging.getLogger("excite").error("error: %s", error)
        sys.exit(error.exit_code)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        logging.getLogger("excite").error("error: Cannot access%s: %s.", where, error.strerror or error)
        sys.exit(ExciteError.exit_code)
    finally:
        close_log_file()


def _prepare_streams() -> None:
    """Open the standard streams that are closed, and let stdout print characters that its encoding does not have."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the number of a closed stream: no other file gets it
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("plain", _plain)
        sys.stdout.reconfigure(errors="plain")


def _plain(error: Any) -> tuple[str, int]:
    """Dashes become hyphens; other characters are escaped, η as \\u03b7."""
    text = error.object[error.start : error.end].translate(PLAIN)
    return text.encode("ascii", "backslashreplace").decode(), error.end


@contextlib.contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C: release locks, stop worker processes, remove incomplete files."""

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
    """SIGTERM arrived outside of training; training handles it itself."""


def _ask_again(hook: Callable[[Any], object], dropped: Any) -> None:
    """Send a stop signal again if Python dropped its exception, because it was raised while an object was finalized."""
    requests = {_Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
    if request := requests.get(dropped.exc_type):
        threading.Timer(A_MOMENT, os.kill, (os.getpid(), request)).start()
    else:
        hook(dropped)


@contextlib.contextmanager
def _only_first_speaks() -> Iterator[None]:
    if is_first():
        yield
    else:
        with Path(os.devnull).open("w") as null, redirect_stdout(null), redirect_stderr(null):
            yield
