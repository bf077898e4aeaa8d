"""What experiments are called in tables and figures: network, data, way of training, and what sets them apart."""

from collections.abc import Mapping, Sequence
from typing import Any

from excite.runs.experiment import Experiment, flattened
from excite.runs.folder import ArmFolder, RunFolder

POE = "PoE: persistency of excitation, which the paper's theorem promises at rates up to 1/L."

# What every table shows in a column of its own, or what does not change what a training is.
SHOWN = ("name", "summary", "seed", "arms", "sweep", "data.name", "data.train_examples", "model", "attacks", "record")
SHOWN_OF_TRAINING = ("training.epochs", "training.batch_size", "training.objective", "training.schedule.rate")


def network(experiment: Experiment) -> str:
    """Its name and its options: `lenet5 tanh`."""
    options = (value if isinstance(value, str) else f"{key} {value}" for key, value in experiment.model.options.items())
    return " ".join([experiment.model.name, *options])


def data_set(experiment: Experiment) -> str:
    """Its name, and how many training images where it is not all of them."""
    examples = experiment.data.train_examples
    return experiment.data.name if examples is None else f"{experiment.data.name}, {examples:,} images"


def objective(experiment: Experiment) -> str:
    """The name of the training's loss, whether it was given alone or with its options."""
    given: str | Mapping[str, Any] = experiment.training.objective
    return given if isinstance(given, str) else str(given["kind"])


def titles(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """A panel's title: network and data, and what else sets its runs apart from the other panels'."""
    experiments = [group[0].experiment for group in groups]
    names = [f"{network(experiment)}, {data_set(experiment)}" for experiment in experiments]
    apart_from_others = zip(names, apart(experiments), strict=True)
    return [f"{name}\n{words}" if words else name for name, words in apart_from_others]


def arm_title(arms: Sequence[ArmFolder]) -> str:
    """What an arm is called, over its seeds: 2/L at which a training diverged is not "largest convergent"."""
    return arms[0].short_title if any(arm.problem for arm in arms) else arms[0].title


def duration(seconds: float) -> str:
    """
    >>> duration(41.4), duration(150), duration(5000)
    ('41 s', '2.5 minutes', '1.4 hours')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.2g} minutes" if seconds < 3600 else f"{seconds / 3600:.2g} hours"


def apart(experiments: Sequence[Experiment], shown: Sequence[str] = SHOWN + SHOWN_OF_TRAINING) -> list[str]:
    """Per experiment, what else than `shown` sets it apart from the others: `training.momentum 0.9`; or nothing."""
    flat = [flattened(experiment.to_json()) for experiment in experiments]
    keys = dict.fromkeys(key for values in flat for key in values if not _below(key, shown))
    differing = [key for key in keys if any(values.get(key) != flat[0].get(key) for values in flat)]
    return [", ".join(f"{key} {values[key]}" for key in differing if values.get(key) is not None) for values in flat]


def _below(key: str, tables: Sequence[str]) -> bool:
    return any(key == table or key.startswith(f"{table}.") for table in tables)
