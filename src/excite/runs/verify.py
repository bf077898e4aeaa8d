"""Check that every file of a run folder is as its stage wrote it, and that all results can be read."""

from dataclasses import dataclass
from pathlib import Path

from excite.errors import ExciteError
from excite.files import read_json, read_lines
from excite.runs.folder import ArmFolder, collect
from excite.training import WEIGHTS


@dataclass(frozen=True)
class Verification:
    """The number of files checked, and the problems."""

    files: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*self.problems, f"{self.files - len(self.problems)} of {self.files} files are unchanged."])


def verify(folder: Path) -> Verification:
    """Check every file of the runs in `folder`."""
    runs = collect([folder])
    files = [path for run in runs for path in run.files()]
    problems = [problem for path in files if (problem := _problem(path))]
    if not problems:  # results can only be read, and compared with each other, if each file is sound
        for run in runs:
            try:
                run.to_json()
            except ExciteError as error:
                problems.append(str(error))
    return Verification(len(files), tuple(problems))


def _problem(path: Path) -> str | None:
    from excite.trace import Trace
    from excite.training import checkpoints

    arm = ArmFolder(path.parent)
    try:
        if path.match(WEIGHTS):
            if arm.trained or arm.has_checkpoint:  # otherwise the first checkpoint is being written
                checkpoints.check(path.parent)
        elif path.suffix == ".safetensors":
            Trace.load(path)
        elif path.suffix == ".jsonl":
            read_lines(path)
        else:
            read_json(path)
    except ExciteError as error:
        return str(error)
    return None
