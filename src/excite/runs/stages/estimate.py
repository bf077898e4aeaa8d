"""L by one estimator, from what it needs: the baseline's trace, short trainings, nothing; or another seed's L."""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count
from typing import Any

from excite.console import Speaker
from excite.errors import InputError
from excite.files import read_as, write_json
from excite.lipschitz import Estimator, LipschitzEstimate, ShortTrainings
from excite.lipschitz.optimizers import described
from excite.quantities import OnProgress
from excite.runs.arms import OWN
from excite.runs.assemble import Parts
from excite.runs.collection import seedless
from excite.runs.experiment import estimator_of, options_of
from excite.runs.folder import RunFolder
from excite.runs.stored import StoredEstimate


def estimate(parts: Parts, run: RunFolder, console: Speaker, name: str = OWN) -> None:
    """Leave L by the estimator `name` in the folder. Where another than the run's own has no answer, leave why."""
    started = time.perf_counter()
    found, problem = None, ""
    try:
        found = _estimate(parts, run, console, name)
    except InputError as error:
        if name == OWN:
            raise
        problem = str(error)
    stored = StoredEstimate(found, time.perf_counter() - started, problem, dict(options_of(parts.experiment, name)))
    write_json(run.estimate_file(name), asdict(stored))
    if name == OWN:
        console.say(str(found))


def _estimate(parts: Parts, run: RunFolder, console: Speaker, name: str) -> LipschitzEstimate:
    chosen = estimator_of(parts.experiment, name)
    if chosen.needs == "trace":
        return chosen(run.arm("baseline").trace())
    if chosen.needs == "nothing":
        return chosen(None)
    whole = parts.whole_training
    most = chosen.most_steps(whole)
    method = options_of(parts.experiment, name)["method"]
    title = f"L by {method}: short runs, at most {most} steps, {most / whole:.0%} of a training"
    with console.task(title) as progress:
        return chosen(replace(short_trainings(parts, chosen, progress), say=console.say))


def short_trainings(parts: Parts, chosen: Estimator[Any], on_progress: OnProgress) -> ShortTrainings:
    """The experiment's, which tell `on_progress` how many of the steps that `chosen` may take are done."""
    most, taken = chosen.most_steps(parts.whole_training), count(1)

    def losses_at(rate: float, draw: int, steps: int) -> Iterator[float]:
        for loss in parts.losses_at(rate, draw, steps):
            on_progress(next(taken), most)
            yield loss

    first_rate = parts.schedule(0)
    optimizer = described(parts.new_optimizer(parts.new_model(), first_rate))
    return ShortTrainings(losses_at, parts.whole_training, first_rate, optimizer)


def leader_of(run: RunFolder) -> RunFolder | None:
    """The run beside this one whose L it takes over, where they share L; none if this one estimates it."""
    beside = [other for path in sorted(run.path.parent.iterdir()) if (other := RunFolder(path)).exists]
    same = [other for other in beside if seedless(other.experiment) == seedless(run.experiment)]
    leader = min(same, key=lambda other: other.experiment.seed, default=run)
    return None if leader.path.name == run.path.name else leader


def share(leader: RunFolder, run: RunFolder, name: str) -> None:
    """Leave the leader's L in the folder, and say whose it is."""
    stored = read_as(leader.estimate_file(name), StoredEstimate)
    estimate = stored.estimate and replace(
        stored.estimate, basis=f"shared by the study, estimated in {leader.path.name}: {stored.estimate.basis}"
    )
    write_json(run.estimate_file(name), asdict(replace(stored, estimate=estimate, seconds=0.0)))
