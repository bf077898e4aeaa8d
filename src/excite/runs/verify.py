"""Check that every file of a run folder is as its stage wrote it, and that the files agree with each other."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excite.errors import ExciteError
from excite.files import expected, read_json, read_lines
from excite.runs.folder import ArmFolder, RunFolder, collect
from excite.training import WEIGHTS

ROUNDING = 1e-6  # other processors and versions give other last digits


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
    if not problems:  # files can only be compared with each other if each of them is sound
        for run in runs:
            try:
                run.to_json()  # reads every result
                with expected(run.path):
                    problems += _contradictions(run)
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


def _contradictions(run: RunFolder) -> Iterator[str]:
    """Find rates, intervals and counts that do not follow from what else is stored."""
    from excite.runs.assemble import look_up
    from excite.runs.stages.attack import certificate_of

    for name, stored in run.estimates.items():
        if estimate := stored.estimate:
            low, high = estimate.interval
            if not low * (1 - ROUNDING) <= estimate.constant <= high * (1 + ROUNDING):
                yield f"{run.estimate_file(name)}: L = {estimate.constant} is outside its interval, {low} to {high}."
            elif estimate.identified and not _can_be_identified(estimate.method, estimate.details):
                yield f"{run.estimate_file(name)}: it says that L is identified, but its details say otherwise."
    for arm in run.arms:
        run.check_rate(arm, look_up(run.experiment).schedule(0))
        for folder in (arm, *arm.further):
            if folder.evaluation and not _agree(read_json(folder.evaluation_file), folder.evaluation.to_json()):
                yield f"{folder.evaluation_file}: its accuracies and intervals do not follow from its outcomes."
        if arm.certified and (again := certificate_of(arm)):
            facts = {key: value for key, value in again.to_json().items() if key != "conclusion"}  # which is text
            if not _agree(read_json(arm.certificate_file), facts):
                yield f"{arm.certificate_file}: it does not follow from the trace."


def _can_be_identified(method: str, details: Mapping[str, Any]) -> bool:
    """Whether the stored details of an estimate allow that L is identified."""
    match method:
        case "stated":
            return False
        case "edge":  # some short run failed; earlier versions used another name
            return False in details.get("converged", details.get("ended_well", [False]))
        case "online":  # a rate broke above all that held
            return bool(max(details["breaks"], default=0) > max(details["good"]))
        case "curvature":
            return all(r <= 0.1 * value for value, r in zip(details["curvatures"], details["residuals"], strict=True))
    fit = details.get("fit", {})
    return bool(fit.get("identified", True)) and details.get("protocol") != "authors"


def _agree(stored: Any, computed: Any) -> bool:
    """Whether two JSON values are the same up to rounding, as far as both have the same keys."""
    match stored, computed:
        case dict(), dict():
            return all(_agree(stored[key], computed[key]) for key in stored.keys() & computed.keys())
        case list(), list():
            return len(stored) == len(computed) and all(map(_agree, stored, computed))
        case float() | int(), float() | int():
            return math.isclose(stored, computed, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return bool(stored == computed)
