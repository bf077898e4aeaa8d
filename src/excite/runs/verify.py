"""Check that every file of a run folder is as its stage wrote it, and that all results can be read."""

from dataclasses import dataclass
from pathlib import Path

from excite.errors import ExciteError
from excite.files import read_json, read_lines
from excite.runs.folder import ArmFolder, RunFolder, collect
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
    checked = [_problem(path) for run in runs for path in run.files()]
    problems = [problem for problem in checked if problem]
    if not problems:  # files can only be compared with each other if each of them is sound
        problems = [problem for run in runs if (problem := _contradiction(run))]
    return Verification(len(checked), tuple(problems))


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


def _contradiction(run: RunFolder) -> str | None:
    """Read every result, which fails if files of one arm contradict each other."""
    try:
        run.to_json()
    except ExciteError as error:
        return str(error)
    return None
