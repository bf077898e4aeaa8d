"""What an experiment costs on this machine: its work, at the passes per second that the machine is seen to make."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from excite import data
from excite.runs.experiment import Experiment, Model, with_values
from excite.sweeps.speed import Network, passes_per_second
from excite.sweeps.work import Work, count_work


@dataclass(frozen=True)
class Cost:
    """Of one run, and of all runs of the experiment's sweep."""

    work: Work
    seconds: float
    sweep_runs: int
    sweep_seconds: float

    def __str__(self) -> str:
        return f"≈ {duration(self.seconds)}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def costs(experiments: Mapping[str, Experiment], device: torch.device) -> dict[str, Cost]:
    """What each experiment would cost on `device`, whose speed is measured now."""
    runs = {name: [experiment, *sweep_runs(experiment)] for name, experiment in experiments.items()}
    speeds = passes_per_second(networks(itertools.chain.from_iterable(runs.values())), device)

    def seconds(run: Experiment, work: Work) -> float:
        return work.passes / speeds[_network(run, run.model)] + work.teaching / speeds[_network(run, _teacher(run))]

    found = {}
    for name, (experiment, *swept) in runs.items():
        work = count_work(experiment)
        in_sweep = sum(seconds(run, count_work(run)) for run in swept)
        found[name] = Cost(work, seconds(experiment, work), len(swept), in_sweep)
    return found


def networks(runs: Iterable[Experiment]) -> set[Network]:
    """What they and their teachers train."""
    return {_network(run, model) for run in runs for model in (run.model, _teacher(run))}


def _network(run: Experiment, model: Model) -> Network:
    return Network(model.name, data.find(run.data.name).input_shape, tuple(sorted(model.options.items())))


def _teacher(run: Experiment) -> Model:
    """The teacher's model; where there is none, the run's own."""
    return (run.teacher and run.teacher.model) or run.model


def sweep_runs(experiment: Experiment) -> Iterator[Experiment]:
    """Every combination of the sweep's values; none where there is no sweep."""
    if experiment.sweep:
        for values in itertools.product(*experiment.sweep.values()):
            yield with_values(experiment, dict(zip(experiment.sweep, values, strict=True)))


def duration(seconds: float) -> str:
    """Two figures of the largest unit that fits.

    >>> duration(200), duration(4e6)
    ('3.3 min', '46 days')
    """
    for unit, length in (("years", 365.25 * 86400), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{_two_figures(seconds / length)} {unit}"
    return f"{_two_figures(seconds)} s"


def _two_figures(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}" if value < 100 else f"{value:,.0f}"
