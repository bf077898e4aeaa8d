"""Runs that are alike but for one thing, such as the rate: what a line of a figure or a chart joins."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from excite.report import labels
from excite.runs.experiment import Experiment
from excite.runs.folder import RunFolder


def same_but(key: Callable[[Experiment], Experiment], runs: Iterable[RunFolder]) -> list[list[RunFolder]]:
    """Runs that are the same once `key` has taken out what may differ; what a run is for and its seed may always."""
    found: dict[bytes, list[RunFolder]] = {}
    for run in runs:
        experiment = msgspec.structs.replace(key(run.experiment), name="", summary="", seed=0, arms=(), sweep={})
        plain = experiment.to_json() | {"lipschitz": None, "record": None}
        found.setdefault(msgspec.json.encode(plain, order="sorted"), []).append(run)
    return list(found.values())


def without_rate(experiment: Experiment) -> Experiment:
    training = experiment.training
    schedule = {key: value for key, value in training.schedule.items() if key != "rate"}
    return msgspec.structs.replace(experiment, training=msgspec.structs.replace(training, schedule=schedule))


def without_batch_size(experiment: Experiment) -> Experiment:
    return msgspec.structs.replace(experiment, training=msgspec.structs.replace(experiment.training, batch_size=1))


def titles(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """A panel's title: network and data, and what else sets its runs apart from the other panels'."""
    experiments = [group[0].experiment for group in groups]
    names = [f"{labels.network(experiment)}, {labels.data_set(experiment)}" for experiment in experiments]
    apart = labels.apart(experiments)
    return [f"{name}\n{words}" if words else name for name, words in zip(names, apart, strict=True)]
