"""Check that every file of a run folder is as its stage wrote it, and that the files agree with each other."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excite.errors import ExciteError, InputError
from excite.files import expected, read_json, read_lines
from excite.runs.folder import ArmFolder, RunFolder, collect
from excite.training import WEIGHTS

if TYPE_CHECKING:
    from excite.schedules import Schedule


@dataclass(frozen=True)
class Verification:
    """The number of files checked, and the problems."""

    files: int
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "problems": list(self.problems)}

    def __str__(self) -> str:
        return "\n".join([*self.problems, f"{self.files - len(self.problems)} of {self.files} files are unchanged."])


def verify(folder: Path) -> Verification:
    """Check every file of the runs in `folder`."""
    runs = collect([folder])
    checked = [_problem(path) for run in runs for path in run.files()]
    problems = [problem for problem in checked if problem]
    if not problems:  # files can only be compared with each other if each of them is sound
        problems = [problem for run in runs for problem in _contradictions(run)]
    return Verification(len(checked), tuple(problems))


def _problem(path: Path) -> str | None:
    try:
        if path.suffix == ".safetensors":
            _check_tensors(path)
        elif path.suffix == ".jsonl":
            read_lines(path)
        else:
            read_json(path)
    except ExciteError as error:
        return str(error)
    return None


def _check_tensors(path: Path) -> None:
    from excite.trace import Trace
    from excite.training import checkpoints

    arm = ArmFolder(path.parent)
    if path.match(WEIGHTS):
        if arm.trained or arm.has_checkpoint:  # otherwise the first checkpoint is being written
            checkpoints.check(path.parent)
    else:
        Trace.load(path)


def _contradictions(run: RunFolder) -> list[str]:
    """Find files that contradict the experiment or each other."""
    from excite.runs.assemble import look_up

    try:
        run.to_json()  # reads every result
        with expected(run.path):
            schedule = look_up(run.experiment).schedule
            return [problem for arm in run.arms for problem in _not_as_planned(run, arm, schedule)]
    except ExciteError as error:
        return [str(error)]


def _not_as_planned(run: RunFolder, arm: ArmFolder, baseline: "Schedule") -> Iterator[str]:
    """Compare the rates, epochs and images of an arm with what the experiment and earlier stages say."""
    from excite.schedules import rescale

    epochs = run.experiment.training.epochs
    schedule = rescale(baseline, arm.rate, horizon=epochs)
    scheduled = arm.epochs[-1:] if arm.arm.finds_its_rate else arm.epochs
    wrong = [epoch.epoch for epoch in scheduled if not math.isclose(epoch.rate, schedule(epoch.epoch - 1))]
    if wrong:
        yield f"{arm.metrics_file}: the rate of epoch {wrong[0]} differs from the schedule's."
    if not arm.problem and len(arm.epochs) != epochs:
        yield f"{arm.metrics_file} has {len(arm.epochs)} of {epochs} epochs."
    n_test = run.experiment.data.test_examples
    if arm.evaluation and n_test and len(arm.evaluation.correct) != n_test:
        yield f"{arm.evaluation_file} does not have the {n_test} test images of the experiment."
    try:
        rate = run.first_rate(arm.arm, baseline(0))
    except (FileNotFoundError, InputError):  # the folder was stored without the files of earlier stages
        return
    if not arm.arm.finds_its_rate and not math.isclose(arm.rate, rate):
        yield f"{arm.outcome_file}: the rate is {arm.rate}, not {rate}."
