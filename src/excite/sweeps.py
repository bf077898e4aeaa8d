"""Many runs: a sweep over values and seeds, whose jobs run in parallel, and the paper's choice of a batch size.

A job estimates L for one run folder, or trains and attacks one arm of it.
"""

import contextlib
import itertools
import os
import re
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from excite import data
from excite.console import Console, Speaker
from excite.errors import DivergedError, ExciteError, InputError, InterruptedRunError
from excite.excitation import FEWEST_MOMENTS, acuteness, choose_batch_size
from excite.execution import UNSHARED, Executor, Shards, executor
from excite.files import being_made
from excite.randomness import usable_device
from excite.registry import short_name
from excite.runs.arms import arm_named
from excite.runs.assemble import epoch_images
from excite.runs.experiment import Experiment
from excite.runs.folder import RunFolder, begin_study, check_not_a_run
from excite.runs.procedure import Run

ESTIMATE_L = "L"  # the task that is not an arm; L@stated uses the preset "stated"


@dataclass(frozen=True)
class Job:
    folder: Path
    task: str

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
        attacked = [arm, *(weights for weights in arm.further if weights.has_checkpoint)]
        return (arm.outcome_file, *(weights.evaluation_file for weights in attacked))

    @property
    def log(self) -> Path:
        return self.folder / f"{self.task}.log"

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


@dataclass(frozen=True)
class Sweep:
    """The outcome of every job, in the order in which they ended."""

    folder: Path
    outcomes: Mapping[Job, JobEnd]

    @property
    def failed(self) -> list[Job]:
        return [job for job, outcome in self.outcomes.items() if outcome.status == "failed"]

    def to_json(self) -> dict[str, Any]:
        jobs = [
            {"folder": str(job.folder), "task": job.task} | asdict(outcome) for job, outcome in self.outcomes.items()
        ]
        return {"folder": str(self.folder), "jobs": jobs}

    def __str__(self) -> str:
        diverged = sum(outcome.status == "diverged" for outcome in self.outcomes.values())
        lines = [f"{job}: {self.outcomes[job].reason}" for job in self.failed]
        done = len(self.outcomes) - len(self.failed)
        ended = f"{done} of {len(self.outcomes)} jobs done" + (f", {diverged} of them diverged" if diverged else "")
        return "\n".join([f"{ended}, {len(lines)} failed, in {self.folder}", *lines])


def combinations(experiment: Experiment, folder: Path, seeds: int | None = None) -> Iterator[tuple[Path, Experiment]]:
    """Yield every combination of the experiment's `sweep` table after its run folder; `seeds` replaces its seeds.

    If L is wanted though no arm needs it, one run alone estimates it: the one with the experiment's values, or the
    first value where the sweep leaves out the experiment's.
    """
    check_not_a_run(folder)
    values: dict[str, Sequence[Any]] = {key: options for key, options in experiment.sweep.items() if key != "seed"}
    values["seed"] = experiment.sweep.get("seed", [experiment.seed]) if seeds is None else range(seeds)
    if empty := [key for key, options in values.items() if not options]:
        raise InputError(f"The sweep over {empty[0]} has no values: name some, or leave the key out.")
    last_words = [key.rpartition(".")[2] for key in values]
    names = [word if last_words.count(word) == 1 else key for key, word in zip(values, last_words, strict=True)]
    settings = experiment.settings(without=())
    usual = [settings.get(key) if settings.get(key) in options else options[0] for key, options in values.items()]
    estimating = (*usual[:-1], values["seed"][0])
    for chosen in itertools.product(*values.values()):
        changes = {"sweep": {}} | dict(zip(values, chosen, strict=True))
        if experiment.lipschitz.get("wanted") and chosen != estimating:
            changes["lipschitz.wanted"] = False
        words = [re.sub(r"[^\w.+-]+", "-", str(option)).strip("-") for option in chosen]
        name = ",".join(f"{name}-{word}" for name, word in zip(names, words, strict=True))
        yield folder / short_name(name), experiment.with_values(changes)


def sweep(
    experiment: Experiment,
    folder: Path,
    *,
    console: Speaker,
    seeds: int | None = None,
    arms: Iterable[str] = (),
    device: str | None = None,
    jobs_in: Shards = UNSHARED,
    shards: int | None = None,
) -> Sweep:
    """Run all jobs of the experiment's combinations whose results are missing. A job that fails stops no other.

    `jobs_in` says where jobs run, by default in one process per GPU, or else per core. On a device such as cuda:0 or
    mps, they run one after the other. The attack of each job is divided among `shards` workers of the same engine.
    """
    place = usable_device(device)
    if jobs_in.engine == "ray" and place.index is not None:
        raise InputError(f"Ray chooses the GPU of each job: pass --device {place.type} instead of {place}.")
    if jobs_in.workers is None and jobs_in.engine == "local":
        jobs_in = replace(jobs_in, workers=jobs_at_once(place))
    arms, jobs = tuple(arms), list[Job]()
    for _, run in combinations(experiment, folder, seeds):  # before any folder is made
        run.check_estimators(arms or run.arms)
    for path, run in combinations(experiment, folder, seeds):
        Run(path, run, console=console, device=device, arms=arms)  # is not kept, because it holds its data
        jobs += jobs_of(path.resolve(), run, arms or run.arms)
    begin_study(folder, dict.fromkeys(job.folder for job in jobs))
    jobs.sort(key=turn)
    outcomes = {job: outcome for job in jobs if (outcome := earlier_outcome(job))}
    left = [job for job in jobs if job not in outcomes]
    if left:
        divided = UNSHARED if shards is None else Shards(shards, jobs_in.engine)
        use_gpus = device is None or place == torch.device("cuda")
        with executor(jobs_in, use_gpus=use_gpus, n_tasks=len(left)) as engine:
            for job, outcome in run_jobs(left, engine, device=device, shards=divided):
                outcomes[job] = outcome
                console.say(f"{len(outcomes)} of {len(jobs)}: {job} {outcome}")
    path, run = next(combinations(experiment, folder, seeds))
    Run(path, run, console=console, device=device).illustrate()  # the page of a study shows images of its first run
    return Sweep(folder, outcomes)


def jobs_at_once(device: torch.device) -> int | None:
    """How many jobs run at a time where nobody says so: one on a single accelerator, else None, as many as fit."""
    return None if device == torch.device("cuda") or device.type == "cpu" else 1


def jobs_of(folder: Path, experiment: Experiment, arms: Iterable[str]) -> list[Job]:
    """Return one job per arm, and one for each L that is needed or wanted."""
    estimators = [*experiment.needed_estimators(arms := tuple(arms)), *experiment.wanted_estimators()]
    of_estimates = [Job(folder, f"{ESTIMATE_L}@{name}" if name else ESTIMATE_L) for name in dict.fromkeys(estimators)]
    return [*of_estimates, *(Job(folder, arm_named(arm).name) for arm in dict.fromkeys(arms))]


def turn(job: Job) -> int:
    """Sort key: arms that need no L, then estimates of L, then the other arms.

    A job that needs another's result waits for it, or makes it; in this order, it seldom has to wait.
    """
    return 1 if job.estimator is not None else 0 if arm_named(job.task).estimator is None else 2


def earlier_outcome(job: Job) -> JobEnd | None:
    """Return how a job ended before, if it need not run again."""
    if all(file.exists() for file in job.files):
        return JobEnd("done", "earlier")
    arm = RunFolder(job.folder).arm(job.task)
    return JobEnd("diverged", arm.problem) if arm.trained and arm.problem else None


def run_jobs(
    jobs: Iterable[Job], engine: Executor, *, device: str | None = None, shards: Shards = UNSHARED
) -> Iterator[tuple[Job, JobEnd]]:
    """Yield each job with its outcome as it ends. Jobs that another sweep in this folder is working on start last."""
    waiting, running = list(jobs), dict[Any, Job]()
    while waiting or running:
        waiting.sort(key=lambda job: any(being_made(file) for file in job.files))
        while waiting and len(running) < engine.n_workers:
            job = waiting.pop(0)
            running[engine.submit(perform, job, device, shards)] = job
        for task in engine.wait(running):
            job = running.pop(task)
            try:
                yield job, task.result()
            except ExciteError as error:  # its process died too often
                yield job, JobEnd("failed", f"{error} The log is {job.log}.")


def perform(job: Job, device: str | None, shards: Shards = UNSHARED) -> JobEnd:
    """Run one job, or resume it; its attack is divided among `shards`. Progress goes to a log in the run folder.

    Every error becomes an outcome, except an interrupt: the engine decides whether the job starts again.
    """
    started, end = time.perf_counter(), JobEnd("done")
    with (
        job.log.open("a", encoding="utf-8") as log,
        contextlib.redirect_stderr(log),
        contextlib.redirect_stdout(log),
    ):
        console = Console()
        console.say(f"{job} in process {os.getpid()}")
        try:
            run = Run.open(job.folder, console=console, device=device)
            if job.estimator is not None:
                run.estimates([job.estimator])
            elif problem := run.finish(job.task, shards):
                end = JobEnd("diverged", problem)
        except InterruptedRunError:
            raise
        except ExciteError as error:
            console.say(f"error: {error}")
            end = JobEnd("failed", str(error))
        except Exception as error:  # the other jobs go on
            console.say(traceback.format_exc())
            end = JobEnd("failed", f"{error!r}, see {job.log}")
    return replace(end, seconds=time.perf_counter() - started)


@dataclass(frozen=True)
class BatchSizeChoice:
    """For each batch size, the share of epochs at which Assumption 2 holds and the clean accuracy; and the choice."""

    fractions: dict[int, float]
    accuracies: dict[int, float]
    threshold: float
    chosen: int | None
    conclusion: str

    def __str__(self) -> str:
        lines = [
            f"batch {size}: Assumption 2 holds in {self.fractions[size]:.0%} of the epochs, "
            f"clean accuracy {self.accuracies[size]:.2%}"
            for size in sorted(self.fractions)
        ]
        return "\n".join([*lines, self.conclusion])


def try_batch_sizes(runs: Mapping[int, Run], threshold: float | None = None) -> BatchSizeChoice:
    """Train the baseline of each run and choose a batch size; sizes that diverge are left out.

    `threshold` is the clean accuracy to reach, by default the paper's: 0.6 with 100 classes, otherwise 0.8.
    """
    if threshold is None:
        data_set = data.find(next(iter(runs.values())).experiment.data.name)
        threshold = 0.6 if data_set.num_classes == 100 else 0.8
    fractions, accuracies = {}, {}
    for size, run in runs.items():
        try:
            run.train("baseline")
            fractions[size] = acuteness(run.files.needed_trace("baseline")).fraction
        except DivergedError as error:
            run.console.say(f"batch {size}: {error}")
        else:
            accuracies[size] = run.files.arm("baseline").epochs[-1].extra["test_accuracy"]
    if not fractions:
        raise DivergedError("Training diverged at every batch size. Give the baseline a lower rate.")
    try:
        chosen = choose_batch_size(fractions, accuracies, threshold)
    except InputError as error:
        return BatchSizeChoice(fractions, accuracies, threshold, None, str(error))
    conclusion = (
        f"Choose {chosen}: from the smallest size at which Assumption 2 holds most often, down to an accuracy of "
        f"{threshold:.0%}."
    )
    return BatchSizeChoice(fractions, accuracies, threshold, chosen, conclusion)


def check_batch_sizes(experiment: Experiment, sizes: Iterable[int]) -> None:
    """Refuse batch sizes larger than an epoch, and trainings of too few epochs."""
    images = epoch_images(experiment)
    if (largest := max(sizes)) > images:
        raise InputError(f"An epoch has {images:,} images, too few for batches of {largest:,}. Try at most {images}.")
    if experiment.training.epochs < FEWEST_MOMENTS:
        raise InputError(
            f"Assumption 2 is evaluated from epoch to epoch, and {experiment.training.epochs} epochs are too few. "
            f"Train at least {FEWEST_MOMENTS}."
        )
