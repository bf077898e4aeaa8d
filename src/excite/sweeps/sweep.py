"""A sweep is a set of run folders, one per combination of values and seed, and the jobs that fill them."""

import itertools
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from excite.console import Speaker
from excite.errors import InputError
from excite.registry import LONGEST_NAME
from excite.runs.collection import check_not_a_run, seedless
from excite.runs.experiment import Experiment, check_estimators, is_wanted, with_values
from excite.runs.procedure import Run
from excite.sweeps.engines import Engine
from excite.sweeps.jobs import Job, JobEnd, earlier_outcome, jobs_of


@dataclass(frozen=True)
class Sweep:
    """Every job with its outcome, in the order in which they ended."""

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
    return _wanting_once(experiment, runs) if is_wanted(experiment) else runs


def sweep(
    runs: Mapping[Path, Experiment],
    folder: Path,
    *,
    engine: Engine,
    console: Speaker,
    arms: Iterable[str] = (),
    device: str | None = None,
) -> Sweep:
    """Do all jobs of `runs` by `engine`; those whose files are there are passed over. One that fails stops no other."""
    arms = tuple(arms)
    for experiment in runs.values():  # what cannot run is refused before anything does, and leaves no folder
        check_estimators(experiment, arms or experiment.arms)
    opened = [Run(path, experiment, console=console, device=device, arms=arms) for path, experiment in runs.items()]
    found = (jobs_of(run.folder.resolve(), run.experiment, arms or run.experiment.arms) for run in opened)
    jobs = list(dict.fromkeys(itertools.chain.from_iterable(found)))
    outcomes = {job: outcome for job in jobs if (outcome := earlier_outcome(job))}
    left = [
        replace(job, needs=tuple(needed for needed in job.needs if needed not in outcomes))
        for job in jobs
        if job not in outcomes
    ]
    with closing(engine(left)) as ended:
        for job, outcome in ended:
            outcomes[job] = outcome
            console.say(f"{len(outcomes)} of {len(jobs)}: {job} {outcome}")
    for run in opened:
        run.estimates_from_trace()
    opened[0].show()  # the page of a study shows the images of its first run
    return Sweep(folder, outcomes)


def _wanting_once(experiment: Experiment, runs: Mapping[Path, Experiment]) -> dict[Path, Experiment]:
    """An L that is wanted for itself is estimated in one run: the first with the experiment's own values, if any."""
    own = next((path for path, run in runs.items() if seedless(run) == seedless(experiment)), next(iter(runs)))
    return {path: run if path == own else with_values(run, {"lipschitz.wanted": False}) for path, run in runs.items()}


def _short_names(keys: Iterable[str]) -> list[str]:
    """The last word of each dotted key, or all of it where two keys end alike."""
    keys = list(keys)
    last = [key.rpartition(".")[2] for key in keys]
    return [word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)]


def _short(name: str) -> str:
    """A name that a folder can have: a long one ends in a hash of all of it."""
    return name if len(name) <= LONGEST_NAME else f"{name[:80]}-{sha256(name.encode()).hexdigest()[:16]}"


def _slug(value: Any) -> str:
    return re.sub(r"[^\w.+-]+", "-", str(value)).strip("-")
