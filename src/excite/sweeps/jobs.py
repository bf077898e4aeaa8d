"""A sweep's jobs: L, or one arm, of one run folder."""

import contextlib
import os
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from excite.console import Console
from excite.errors import ExciteError, InterruptedRunError
from excite.evaluation.shards import UNSHARED, Shards
from excite.files import read_as
from excite.runs.arms import OWN, arm_named
from excite.runs.experiment import Experiment, estimator_of, is_shared, is_wanted
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.runs.records import StoredEstimate
from excite.runs.stages.estimate import leader_of

ESTIMATE_L = "L"  # the task that is not an arm; L@stated is by a preset
RETRIES = 2  # of a job whose process was killed


@dataclass(frozen=True)
class Job:
    folder: Path
    task: str
    needs: tuple["Job", ...] = field(default=(), compare=False)

    @property
    def estimator(self) -> str | None:
        """Whose L it estimates, if any."""
        task, _, name = self.task.partition("@")
        return name if task == ESTIMATE_L else None

    @property
    def files(self) -> tuple[Path, ...]:
        """What it leaves behind, one after the other; a training that diverged is not attacked."""
        if self.estimator is not None:
            return (RunFolder(self.folder).estimate_file(self.estimator),)
        arm = RunFolder(self.folder).arm(self.task)
        best = (arm.best.evaluation_file,) if arm.best.has_checkpoint else ()
        return (arm.outcome_file, arm.evaluation_file, *best)

    @property
    def log(self) -> Path:
        return RunFolder(self.folder).log_file(self.task)

    def __str__(self) -> str:
        return f"{self.folder.name} {self.task}"


@dataclass(frozen=True)
class JobEnd:
    """A training that diverged is a result; a job has failed when it has none."""

    status: Literal["done", "diverged", "failed"]
    reason: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.status} in {self.seconds:.1f} s" + (f": {self.reason}" if self.reason else "")


def jobs_of(folder: Path, experiment: Experiment, arms: Iterable[str]) -> list[Job]:
    """One job per arm, and one for each L that is needed or wanted; L itself may need a baseline's training.

    Where a study shares its L, the baseline is that of the run which estimates it, and the other runs wait for that L.
    """
    asked = []
    for arm in map(arm_named, arms):
        needs = () if arm.estimator is None else (_estimate(folder, experiment, arm.estimator),)
        asked.append(Job(folder, arm.name, needs))
    wanted = [_estimate(folder, experiment, OWN)] if is_wanted(experiment) else []
    before = [needed for job in asked for needed in _before(job)]
    before += [needed for job in wanted for needed in (*_before(job), job)]
    return list(dict.fromkeys([*before, *asked]))


def _before(job: Job) -> Iterator[Job]:
    """All that it needs, and what those need, the first thing to do first."""
    for needed in job.needs:
        yield from _before(needed)
        yield needed


def _estimate(folder: Path, experiment: Experiment, name: str) -> Job:
    task = f"{ESTIMATE_L}@{name}" if name else ESTIMATE_L
    leader = leader_of(RunFolder(folder)) if is_shared(experiment, name) else None
    if leader is not None:
        return Job(folder, task, (_estimate(leader.path, experiment, name),))
    needs_trace = estimator_of(experiment, name).needs == "trace"
    return Job(folder, task, (Job(folder, "baseline"),) if needs_trace else ())


def earlier_outcome(job: Job) -> JobEnd | None:
    """How a job ended that needs not be done again; an L whose file says why there is none was not found."""
    if all(file.exists() for file in job.files):
        found = not job.estimator or read_as(job.files[0], StoredEstimate).estimate
        return JobEnd("done", "earlier") if found else None
    arm = RunFolder(job.folder).arm(job.task)
    if job.estimator is None and arm.trained and arm.problem:
        return JobEnd("diverged", arm.problem)
    return None


def blocked(needed: Iterable[JobEnd]) -> JobEnd | None:
    """What becomes of a job that needs one that failed."""
    failed = next((outcome for outcome in needed if outcome.status == "failed"), None)
    return failed and JobEnd("failed", f"it needs a job that failed: {failed.reason}")


def perform(job: Job, device: str | None, shards: Shards = UNSHARED) -> JobEnd:
    """Do one job, its attack shared among `shards`, its progress going to a log in the run folder.

    Begun by a process that died, it goes on from there.
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
            problem = _work(Run.open(job.folder, console=console, device=device), job, shards)
        except InterruptedRunError:
            raise
        except ExciteError as error:
            console.say(f"error: {error}")
            return JobEnd("failed", str(error), time.perf_counter() - started)
        except Exception as error:  # a fault of one job is not to end the others
            console.say(traceback.format_exc())
            return JobEnd("failed", f"{error!r}, see {job.log}", time.perf_counter() - started)
    seconds = time.perf_counter() - started
    return JobEnd("diverged", problem, seconds) if problem else JobEnd("done", seconds=seconds)


def _work(run: Run, job: Job, shards: Shards) -> str | None:
    if job.estimator is None:
        return run.finish(job.task, shards)
    run.estimate(job.estimator)
    return None
