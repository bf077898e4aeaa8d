"""Open the run folder that a command names: a new one for an experiment, or one that is there."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from excite.cli.options import VERBOSITY

if TYPE_CHECKING:
    from excite.console import Console
    from excite.runs import Experiment
    from excite.runs.folder import RunFolder
    from excite.runs.procedure import Run


def console() -> "Console":
    """Where progress goes, as much of it as -q and -v ask for."""
    from excite.console import Console

    wanted = str(click.get_current_context().meta.get(VERBOSITY))
    levels = {"quiet": logging.ERROR, "verbose": logging.DEBUG}
    logging.getLogger("excite").setLevel(levels.get(wanted, logging.INFO))
    return Console(quiet=wanted == "quiet")


def described(
    experiment: str, changes: tuple[str, ...], out: Path | None, estimator: str | None = None, suffix: str = ""
) -> "tuple[Experiment, Path]":
    """The experiment of this name, of this file or of this run folder, and the folder to run it in."""
    from excite.runs import catalogue, load
    from excite.runs.folder import RunFolder

    if estimator is not None:
        changes, suffix = (f"lipschitz={estimator}", *changes), f"-{estimator}{suffix}"
    there = RunFolder(Path(experiment))
    if experiment not in catalogue() and there.exists:
        if changes:
            raise click.UsageError(
                f"{experiment} has its experiment: --set and --estimator need a name or a file, and a new --out."
            )
        return there.experiment, out or there.path
    description = load(experiment, overrides=changes)
    return description, out or Path("runs") / f"{description.name}{suffix}"


def run_of(experiment: str, out: Path | None, changes: tuple[str, ...], device: str | None) -> "Run":
    """The run of an experiment, in a folder that is made where it is not there."""
    from excite.runs.procedure import Run

    description, folder = described(experiment, changes, out)
    return Run(folder, description, console=console(), device=device)


def open_run(folder: Path, device: str | None) -> "Run":
    """The run in a folder, to go on with."""
    from excite.runs.procedure import Run

    return Run.open(folder, console=console(), device=device)


def read_run(folder: Path) -> "RunFolder":
    """The run in a folder, to read only."""
    from excite.runs.folder import RunFolder

    run = RunFolder(folder)
    _ = run.experiment  # a folder that is no run's says so
    return run
