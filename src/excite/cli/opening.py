"""Open the run folder that a command names: a new one for an experiment, or one that is there."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from excite.runs.procedure import Run


def run_of(experiment: str, out: Path | None, changes: tuple[str, ...], device: str | None) -> "Run":
    from excite.console import Console
    from excite.runs import load
    from excite.runs.procedure import Run

    description = load(experiment, overrides=changes)
    return Run(out or Path("runs") / description.name, description, console=Console(), device=device)


def open_run(folder: Path, device: str | None) -> "Run":
    from excite.console import Console
    from excite.runs.procedure import Run

    return Run.open(folder, console=Console(), device=device)
