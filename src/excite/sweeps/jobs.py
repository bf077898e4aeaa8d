"""The jobs of a sweep: each estimates L for one run folder, or trains and attacks one arm of it."""

import contextlib
import os
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from excite.console import Console
from excite.errors import ExciteError, InterruptedRunError
from excite.execution import UNSHARED, Executor, Shards
from excite.files import being_made, read_as
from excite.runs.arms import OWN, arm_named
from excite.runs.experiment import Experiment, estimator_of, is_shared, is_wanted
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.runs.records import StoredEstimate
from excite.runs.stages.estimate import leader_of

ESTIMATE_L = "L"  # the task that is not an arm; L@stated uses the preset "stated"


@dataclass(frozen=True)
class Job:
    folder: Path
    task: str
    needs: tuple["Job", ...] = field(default=(), compare=False)

    @property
    def estimator(self) -> str | None:
        """The preset whose L it estimates; "" is the experiment's own, None if the job trains an arm."""
        task, _, name = self.task.partition("@")
        return name if task == ESTIMATE_L else None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files it leaves behind, in order; a training that diverged is not attacked."""
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
    """How a job ended. A training that diverged is a result; a job without a result has failed."""

    status: Literal["done", "diverged", "failed"]
    reason: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.status} in {self.seconds:.1f} s" + (f": {self.reason}" if self.reason else "")


def jobs_of(folder: Path, experiment: Experiment, arms: Iterable[str]) -> list[Job]:
    """One job per arm, and one for each L that is needed or wanted. An estimate may need the baseline's training.

    Where a study shares its L, one run estimates it from its own baseline, and the other runs wait for it.
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
    """All jobs that must end before this one, in order."""
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
    """How a job ended before, if it need not run again. An estimate that found no L runs again."""
    if all(file.exists() for file in job.files):
        has_result = not job.estimator or read_as(job.files[0], StoredEstimate).estimate
        return JobEnd("done", "earlier") if has_result else None
    arm = RunFolder(job.folder).arm(job.task)
    if job.estimator is None and arm.trained and arm.problem:
        return JobEnd("diverged", arm.problem)
    return None


def run_jobs(
    jobs: Iterable[Job], engine: Executor, *, device: str | None = None, shards: Shards = UNSHARED
) -> Iterator[tuple[Job, JobEnd]]:
    """Yield each job with its outcome as it ends; a job starts when all jobs that it needs have ended.

    Jobs that another sweep in the same folder is working on start last.
    """
    waiting, running, ended = list(jobs), dict[Any, Job](), dict[Job, JobEnd]()
    while waiting or running:
        ready = [job for job in waiting if all(needed in ended for needed in job.needs)]
        for job in sorted(ready, key=_runs_elsewhere):
            if outcome := blocked(ended[needed] for needed in job.needs):
                waiting.remove(job)
                ended[job] = outcome
                yield job, outcome
            elif len(running) < engine.n_workers:
                waiting.remove(job)
                running[engine.submit(perform, job, device, shards)] = job
        for task in engine.wait(running) if running else ():
            job = running.pop(task)
            try:
                ended[job] = task.result()
            except ExciteError as error:  # its process died too often
                ended[job] = JobEnd("failed", f"{error} The log is {job.log}.")
            yield job, ended[job]


def _runs_elsewhere(job: Job) -> bool:
    return any(being_made(file) for file in job.files)


def blocked(needed: Iterable[JobEnd]) -> JobEnd | None:
    """The outcome of a job that needs a failed one."""
    failed = next((outcome for outcome in needed if outcome.status == "failed"), None)
    return failed and JobEnd("failed", f"it needs a job that failed: {failed.reason}")


def perform(job: Job, device: str | None, shards: Shards = UNSHARED) -> JobEnd:
    """Run one job, or resume it; its attack is divided among `shards`. Progress goes to a log in the run folder.

    Every error becomes an outcome, except an interrupt: the engine decides whether the job starts again.
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
            run = Run.open(job.folder, console=console, device=device)
            if job.estimator is None:
                problem = run.finish(job.task, shards)
            else:
                problem = None
                run.estimate(job.estimator)
        except InterruptedRunError:
            raise
        except ExciteError as error:
            console.say(f"error: {error}")
            return JobEnd("failed", str(error), time.perf_counter() - started)
        except Exception as error:  # the other jobs go on
            console.say(traceback.format_exc())
            return JobEnd("failed", f"{error!r}, see {job.log}", time.perf_counter() - started)
    seconds = time.perf_counter() - started
    return JobEnd("diverged", problem, seconds) if problem else JobEnd("done", seconds=seconds)
