"""Sweep over values and seeds: one run folder per combination, filled by jobs that run in parallel."""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from excite.console import Speaker
from excite.errors import InputError
from excite.execution import UNSHARED, Shards, executor
from excite.registry import LONGEST_NAME
from excite.runs.collection import check_not_a_run, seedless
from excite.runs.experiment import Experiment, check_estimators, is_wanted, with_values
from excite.runs.procedure import Run
from excite.sweeps.jobs import Job, JobEnd, earlier_outcome, jobs_of, run_jobs


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


def combinations(experiment: Experiment, folder: Path, seeds: int | None = None) -> dict[Path, Experiment]:
    """Every combination of the experiment's `sweep` table, by the run folder it gets; `seeds` replaces its seeds."""
    check_not_a_run(folder)
    values = {key: options for key, options in experiment.sweep.items() if key != "seed"}
    values["seed"] = experiment.sweep.get("seed", [experiment.seed]) if seeds is None else list(range(seeds))
    if empty := [key for key, options in values.items() if not options]:
        raise InputError(f"The sweep over {', '.join(empty)} has no values: name some, or leave the key out.")
    short = _short_names(values)
    runs: dict[Path, Experiment] = {}
    for chosen in itertools.product(*values.values()):
        path = folder / _short(",".join(f"{name}-{_slug(value)}" for name, value in zip(short, chosen, strict=True)))
        if path in runs:
            raise InputError(f"Two combinations of the sweep would share the folder {path}; name each value once.")
        runs[path] = with_values(experiment, {"sweep": {}} | dict(zip(values, chosen, strict=True)))
    return _estimating_once(experiment, runs) if is_wanted(experiment) else runs


def sweep(
    runs: Mapping[Path, Experiment],
    folder: Path,
    *,
    console: Speaker,
    arms: Iterable[str] = (),
    device: str | None = None,
    jobs_in: Shards = UNSHARED,
    shards: int | None = None,
) -> Sweep:
    """Run all jobs of `runs` whose results are missing. A job that fails stops no other.

    `jobs_in` says where jobs run, by default in one process per GPU, or else per core. The attack of each job is
    divided among `shards` workers of the same engine.
    """
    arms = tuple(arms)
    for experiment in runs.values():  # before any folder is made
        check_estimators(experiment, arms or experiment.arms)
    opened = [Run(path, experiment, console=console, device=device, arms=arms) for path, experiment in runs.items()]
    lists = (jobs_of(run.folder.resolve(), run.experiment, arms or run.experiment.arms) for run in opened)
    jobs = list(dict.fromkeys(itertools.chain.from_iterable(lists)))
    outcomes = {job: outcome for job in jobs if (outcome := earlier_outcome(job))}
    left = [
        replace(job, needs=tuple(needed for needed in job.needs if needed not in outcomes))
        for job in jobs
        if job not in outcomes
    ]
    if left:
        divided = UNSHARED if shards is None else Shards(shards, jobs_in.engine)
        with executor(jobs_in, use_gpus=device in (None, "cuda"), n_tasks=len(left)) as engine:
            for job, outcome in run_jobs(left, engine, device=device, shards=divided):
                outcomes[job] = outcome
                console.say(f"{len(outcomes)} of {len(jobs)}: {job} {outcome}")
    for run in opened:
        run.estimates_from_trace()
    opened[0].show()  # the page of a study shows the images of its first run
    return Sweep(folder, outcomes)


def _estimating_once(experiment: Experiment, runs: Mapping[Path, Experiment]) -> dict[Path, Experiment]:
    """Let one run alone estimate an L that no arm needs: the first with the experiment's own values, or the first."""
    chosen = next((path for path, run in runs.items() if seedless(run) == seedless(experiment)), next(iter(runs)))
    without = {"lipschitz.wanted": False}
    return {path: run if path == chosen else with_values(run, without) for path, run in runs.items()}


def _short_names(keys: Iterable[str]) -> list[str]:
    """The last word of each dotted key, or all of it where two keys end alike."""
    keys = list(keys)
    last = [key.rpartition(".")[2] for key in keys]
    return [word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)]


def _short(name: str) -> str:
    """Shorten a name that is too long for a folder: its end becomes a hash of the whole."""
    return name if len(name) <= LONGEST_NAME else f"{name[:80]}-{sha256(name.encode()).hexdigest()[:16]}"


def _slug(value: Any) -> str:
    return re.sub(r"[^\w.+-]+", "-", str(value)).strip("-")
