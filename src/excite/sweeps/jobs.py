"""A sweep's jobs: L, or one arm, of one run folder."""

import contextlib
import os
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from excite.console import Console
from excite.errors import ExciteError, InterruptedRunError
from excite.runs.arms import arm_named
from excite.runs.experiment import Experiment
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run

ESTIMATE_L = "L"  # the task that is not an arm
RETRIES = 2  # of a job whose process was killed


@dataclass(frozen=True)
class Job:
    folder: Path
    task: str
    needs: tuple["Job", ...] = field(default=(), compare=False)

    @property
    def files(self) -> tuple[Path, ...]:
        """What it leaves behind, one after the other; a training that diverged is not attacked."""
        if self.task == ESTIMATE_L:
            return (RunFolder(self.folder).estimate_file,)
        arm = RunFolder(self.folder).arm(self.task)
        return (arm.outcome_file, arm.evaluation_file)

    @property
    def log(self) -> Path:
        return RunFolder(self.folder).log_file(self.task)

    def __str__(self) -> str:
        return f"{self.folder.name} {self.task}"


@dataclass(frozen=True)
class Outcome:
    """A training that diverged is a result; a job has failed when it has none."""

    status: Literal["done", "diverged", "failed"]
    reason: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.status} in {self.seconds:.1f} s" + (f": {self.reason}" if self.reason else "")


def jobs_of(folder: Path, experiment: Experiment, arms: Iterable[str]) -> list[Job]:
    """One job per arm, and one for L where an arm needs it; L itself may need the baseline's training."""
    baseline = Job(folder, "baseline")
    estimate = Job(folder, ESTIMATE_L, () if experiment.lipschitz.method == "edge" else (baseline,))
    jobs = [Job(folder, arm.name, (estimate,) if arm.multiple else ()) for arm in map(arm_named, arms)]
    before = (*estimate.needs, estimate) if any(job.needs for job in jobs) else ()
    return list(dict.fromkeys([*before, *jobs]))


def earlier_outcome(job: Job) -> Outcome | None:
    """How a job ended that needs not be done again."""
    if all(file.exists() for file in job.files):
        return Outcome("done", "earlier")
    arm = RunFolder(job.folder).arm(job.task)
    if job.task != ESTIMATE_L and arm.trained and arm.problem:
        return Outcome("diverged", arm.problem)
    return None


def blocked(needed: Iterable[Outcome]) -> Outcome | None:
    """What becomes of a job that needs one that failed."""
    failed = next((outcome for outcome in needed if outcome.status == "failed"), None)
    return failed and Outcome("failed", f"it needs a job that failed: {failed.reason}")


def perform(job: Job, device: str | None) -> Outcome:
    """Do one job, its progress going to a log in the run folder. Begun by a process that died, it goes on from there.

    Only an interrupt is raised: whoever sent it knows whether the job is to be started again.
    """
    started = time.perf_counter()
    with (
        job.log.open("a", encoding="utf-8") as log,
        contextlib.redirect_stderr(log),
        contextlib.redirect_stdout(log),
    ):
        console = Console()
        console.say(f"{job} in process {os.getpid()}")
        try:
            problem = _work(Run.open(job.folder, console=console, device=device), job.task)
        except InterruptedRunError:
            raise
        except ExciteError as error:
            console.say(f"error: {error}")
            return Outcome("failed", str(error), time.perf_counter() - started)
        except Exception as error:  # a fault of one job is not to end the others
            console.say(traceback.format_exc())
            return Outcome("failed", f"{error!r}, see {job.log}", time.perf_counter() - started)
    seconds = time.perf_counter() - started
    return Outcome("diverged", problem, seconds) if problem else Outcome("done", seconds=seconds)


def _work(run: Run, task: str) -> str | None:
    if task != ESTIMATE_L:
        return run.finish(task)
    run.estimate()
    return None
