"""What figures read from run folders: traces, and runs of the same network side by side."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from excite.errors import InputError
from excite.report import labels
from excite.runs.experiment import Experiment
from excite.runs.folder import RunFolder
from excite.trace import Trace


def trace(run: RunFolder, arm: str = "baseline") -> Trace | None:
    """What the recorder noted of an arm that trained to its end."""
    return run.arm(arm).trace()


def same_but(key: Callable[[Experiment], Experiment], runs: Iterable[RunFolder]) -> list[list[RunFolder]]:
    """Runs that are the same once `key` has taken out what may differ; what a run is for and its seed may always."""
    found: dict[bytes, list[RunFolder]] = {}
    for run in runs:
        experiment = msgspec.structs.replace(key(run.experiment), name="", summary="", seed=0, arms=(), sweep={})
        plain = experiment.to_json() | {"lipschitz": None, "record": None}
        found.setdefault(msgspec.json.encode(plain, order="sorted"), []).append(run)
    return list(found.values())


def titles(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """A panel's title: network and data, and what else sets its runs apart from the other panels'."""
    experiments = [group[0].experiment for group in groups]
    names = [f"{labels.network(experiment)}, {labels.data_set(experiment)}" for experiment in experiments]
    apart = labels.apart(experiments)
    return [f"{name}\n{words}" if words else name for name, words in zip(names, apart, strict=True)]


def without_rate(experiment: Experiment) -> Experiment:
    training = experiment.training
    schedule = {key: value for key, value in training.schedule.items() if key != "rate"}
    return msgspec.structs.replace(experiment, training=msgspec.structs.replace(training, schedule=schedule))


def without_batch_size(experiment: Experiment) -> Experiment:
    return msgspec.structs.replace(experiment, training=msgspec.structs.replace(experiment.training, batch_size=1))


def needs(figure: str, what: str, cure: str) -> InputError:
    """The error for runs that lack what a figure shows.

    >>> print(needs("figure-4", "runs at two batch sizes or more", "Sweep over training.batch_size."))
    figure-4 needs runs at two batch sizes or more. Sweep over training.batch_size.
    """
    return InputError(f"{figure} needs {what}. {cure}")
