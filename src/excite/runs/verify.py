"""Check that every file of a run folder is as its stage wrote it, and that the files agree with each other."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excite.errors import CorruptFileError, ExciteError, InputError
from excite.files import expected, parse_json, parse_lines, read_json, read_lines, sealed, write_text
from excite.runs.folder import ArmFolder, RunFolder, collect
from excite.training import WEIGHTS

if TYPE_CHECKING:
    from excite.schedules import Schedule

ROUNDING = 1e-6  # other processors and versions give other last digits


@dataclass(frozen=True)
class Verification:
    """The number of files checked, the problems, and the edited files that were accepted."""

    files: int
    problems: tuple[str, ...]
    accepted: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "problems": list(self.problems), "accepted": list(self.accepted)}

    def __str__(self) -> str:
        lines = [*self.problems, *(f"Accepted: {path}" for path in self.accepted)]
        n_good = self.files - len(self.problems) - len(self.accepted)
        return "\n".join([*lines, f"{n_good} of {self.files} files are unchanged."])


def verify(folder: Path, *, accept: bool = False) -> Verification:
    """Check every file of the runs in `folder`; with `accept`, update the hashes of edited files.

    Files that are not JSON or have another format cannot be accepted.
    """
    runs = collect([folder])
    checked = {path: _problem(path) for run in runs for path in run.files()}
    accepted = [path for path, problem in checked.items() if accept and problem and _accept(path)]
    checked |= dict.fromkeys(accepted)
    problems = [problem for problem in checked.values() if problem]
    if not problems:  # files can only be compared with each other if each of them is sound
        problems = [problem for run in runs for problem in _contradictions(run)]
    return Verification(len(checked), tuple(problems), tuple(map(str, accepted)))


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


def _accept(path: Path) -> bool:
    """Update the hash; return whether the file is now accepted."""
    try:
        if path.suffix == ".jsonl":
            lines = [json.dumps(_resealed(line)) for line in parse_lines(path)]
            write_text(path, "".join(f"{line}\n" for line in lines))
        elif path.suffix in (".json", ".journal"):
            write_text(path, json.dumps(_resealed(parse_json(path)), indent=2) + "\n")
    except CorruptFileError:
        return False
    return _problem(path) is None


def _resealed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return sealed({key: entry for key, entry in value.items() if key != "sha256"})


def _contradictions(run: RunFolder) -> list[str]:
    """Find files that contradict the experiment or each other."""
    from excite.runs.assemble import look_up

    try:
        run.to_json()  # reads every result
        with expected(run.path):
            schedule = look_up(run.experiment).schedule
            of_arms = (problem for arm in run.arms for problem in _not_as_planned(run, arm, schedule))
            return [*_not_as_recomputed(run), *of_arms]
    except ExciteError as error:
        return [str(error)]


def _not_as_planned(run: RunFolder, arm: ArmFolder, baseline: "Schedule") -> Iterator[str]:
    """Compare the rates, epochs, images and batch size of an arm with what the experiment and earlier stages say."""
    from excite.schedules import rescale

    epochs, usual_size = run.experiment.training.epochs, run.experiment.training.batch_size
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
        size = run.batch_size(arm.arm, baseline(0), min(usual_size, arm.outcome.largest_batch or usual_size))
    except (FileNotFoundError, InputError):  # the folder was stored without the files of earlier stages
        return
    if not arm.arm.finds_its_rate and not math.isclose(arm.rate, rate):
        yield f"{arm.outcome_file}: the rate is {arm.rate}, not {rate}."
    if (arm.outcome.batch_size or size) != size:
        yield f"{arm.outcome_file}: the batch size is {arm.outcome.batch_size}, not {size}."


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


def _not_as_recomputed(run: RunFolder) -> Iterator[str]:
    """Find estimates that contradict themselves, and intervals and counts that do not follow from what is stored."""
    from excite.runs.stages.attack import certificate_of

    for name, stored in run.estimates.items():
        if estimate := stored.estimate:
            low, high = estimate.interval
            if not low * (1 - ROUNDING) <= estimate.constant <= high * (1 + ROUNDING):
                yield f"{run.estimate_file(name)}: L = {estimate.constant} is outside its interval, {low} to {high}."
            elif estimate.identified and not _can_be_identified(estimate.method, estimate.details):
                yield f"{run.estimate_file(name)}: it says that L is identified, but its details say otherwise."
    for arm in run.arms:
        for folder in (arm, *arm.further):
            if folder.evaluation and not _agree(read_json(folder.evaluation_file), folder.evaluation.to_json()):
                yield f"{folder.evaluation_file}: its intervals do not follow from its outcomes."
        if arm.certified and (again := certificate_of(arm)):
            facts = {key: value for key, value in again.to_json().items() if key != "conclusion"}  # which is text
            if not _agree(read_json(arm.certificate_file), facts):
                yield f"{arm.certificate_file}: it does not follow from the trace."


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
