"""Is a run folder as it was written? `excite verify`."""

from pathlib import Path

import click

from excite.cli.shared import json_option, run_argument, show
from excite.errors import CorruptFileError


@click.command(epilog="Example: excite verify runs/mnist-sample")
@run_argument
@click.option("--accept", is_flag=True, help="Accept files that were edited on purpose, as they are now.")
@json_option
def verify(folder: Path, accept: bool, as_json: bool) -> None:
    """Check every file of a run folder against its hash, and what the files say against each other."""
    from excite.runs.verify import verify as verify_runs

    found = verify_runs(folder, accept=accept)
    show(as_json, found.to_json(), str(found))
    if found.problems:
        raise CorruptFileError(f"{len(found.problems)} of {found.files} files of {folder} are not to be relied on.")
