"""Estimate L from what the estimator needs: the baseline's trace, short trainings, nothing, or another seed's L."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec

from excite.console import Speaker
from excite.errors import InputError
from excite.lipschitz import Estimator, LipschitzEstimate, ShortTrainings
from excite.lipschitz.optimizers import described
from excite.quantities import OnProgress
from excite.runs.arms import OWN
from excite.runs.assemble import Parts
from excite.runs.collection import seedless
from excite.runs.experiment import estimator_of, options_of
from excite.runs.folder import RunFolder
from excite.runs.records import StoredEstimate


def estimate(parts: Parts, run: RunFolder, console: Speaker, name: str = OWN) -> None:
    """Write L by the estimator `name` into the folder; if an estimator other than the run's own fails, write why."""
    started = time.perf_counter()
    result, problem = None, ""
    try:
        result = _estimate(parts, run, console, name)
    except InputError as error:
        if name == OWN:
            raise
        problem = str(error)
    seconds, options = time.perf_counter() - started, dict(options_of(parts.experiment, name))
    StoredEstimate(result, seconds, problem, options).save(run.estimate_file(name))
    if name == OWN:
        console.say(str(result))


def _estimate(parts: Parts, run: RunFolder, console: Speaker, name: str) -> LipschitzEstimate:
    estimator = estimator_of(parts.experiment, name)
    if estimator.needs == "trace":
        return estimator(run.arm("baseline").trace())
    if estimator.needs == "nothing":
        return estimator(None)
    whole = parts.whole_training
    usual, most = estimator.usual_steps(whole), estimator.most_steps(whole)
    method = options_of(parts.experiment, name)["method"]
    title = f"L by {method}: short runs of {usual:,} to {most:,} steps in all (one training: {whole:,})"
    with console.task(title) as progress:
        return estimator(replace(short_trainings(parts, estimator, progress), say=console.say))


def short_trainings(parts: Parts, estimator: Estimator[Any], on_progress: OnProgress) -> ShortTrainings:
    """Return the experiment's short trainings; they report each step of the estimator's budget to `on_progress`."""
    most, steps_taken = estimator.most_steps(parts.whole_training), count(1)

    def losses_at(rate: float, draw: int, steps: int) -> Iterator[float]:
        for loss in parts.losses_at(rate, draw, steps):
            on_progress(next(steps_taken), most)
            yield loss

    first_rate = parts.schedule(0)
    optimizer = described(parts.new_optimizer(parts.new_model(), first_rate))
    return ShortTrainings(losses_at, parts.whole_training, first_rate, optimizer)


def leader_of(run: RunFolder) -> RunFolder | None:
    """Return the run whose L this one shares: the lowest seed of the study. None if it is this run."""
    siblings = [other for path in sorted(run.path.parent.iterdir()) if (other := RunFolder(path)).exists]
    same_study = [other for other in siblings if seedless(other.experiment) == seedless(run.experiment)]
    leader = min(same_study, key=lambda other: other.experiment.seed, default=run)
    return None if leader.path.name == run.path.name else leader


def share(leader: RunFolder, run: RunFolder, name: str) -> None:
    """Copy the leader's L into the run's folder, with a note where it was estimated."""
    stored = StoredEstimate.load(leader.estimate_file(name))
    shared = stored.estimate and replace(
        stored.estimate, basis=f"shared by the study, estimated in {leader.path.name}: {stored.estimate.basis}"
    )
    msgspec.structs.replace(stored, estimate=shared, seconds=0.0).save(run.estimate_file(name))
