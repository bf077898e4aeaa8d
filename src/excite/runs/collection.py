"""Runs that belong together: which folders an experiment gets, which were found, and what sets them apart."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from excite.errors import InputError
from excite.runs.experiment import Experiment, flattened, with_values, without_plan
from excite.runs.folder import ArmFolder, RunFolder, run_folders_in


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one experiment under several seeds."""

    runs: tuple[RunFolder, ...]

    @property
    def experiment(self) -> Experiment:
        return self.runs[0].experiment

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.experiment.seed for run in self.runs)

    @property
    def arm_names(self) -> list[str]:
        """Of every arm that some seed trained, in the order they come."""
        return list(dict.fromkeys(arm.name for run in self.runs for arm in run.arms))

    def arms(self, name: str) -> list[ArmFolder]:
        """The arm of this name, of every seed at which it was trained."""
        return [arm for run in self.runs for arm in run.arms if arm.name == name]


def run_folders(experiment: Experiment, folder: Path, seeds: int | None) -> dict[Path, Experiment]:
    """The experiment in its folder, or under the seeds 0, 1, … in a folder each below it."""
    if seeds is None:
        if any(run.path != folder for run in run_folders_in(folder)):
            raise InputError(f"{folder} holds several runs. Name a new folder with --out for one, or pass --seeds.")
        return {folder: experiment}
    check_not_a_run(folder)
    return {folder / f"seed-{seed}": with_values(experiment, {"seed": seed}) for seed in range(seeds)}


def check_not_a_run(folder: Path) -> None:
    """A folder is a run or holds several: were it both, a seed could count twice."""
    if RunFolder(folder).exists:
        raise InputError(f"{folder} is one run. Name a new folder with --out for several, or delete this one.")


def collect(folders: Iterable[Path]) -> tuple[RunFolder, ...]:
    """Every run in `folders`: a folder is a run folder, or holds run folders at any depth."""
    found: dict[Path, RunFolder] = {}
    for folder in folders:
        runs = run_folders_in(folder)
        if not runs:
            raise InputError(f"There is no run in {folder}. `excite run` and `excite sweep` make run folders.")
        for run in runs:
            found.setdefault(run.path.resolve(), run)
    return tuple(found.values())


def by_seed(runs: Iterable[RunFolder]) -> tuple[Group, ...]:
    """Runs grouped by everything but their seed, in the order they came; inside a group by seed."""
    groups: dict[bytes, list[RunFolder]] = {}
    for run in runs:
        key = msgspec.json.encode(seedless(run.experiment), order="sorted")
        group = groups.setdefault(key, [])
        for other in group:
            if other.experiment.seed == run.experiment.seed:
                raise InputError(
                    f"{other.path} and {run.path} are one experiment at one seed, {run.experiment.seed}. Name one of "
                    "them, or train another seed: --set seed=1."
                )
        group.append(run)
    return tuple(Group(tuple(sorted(group, key=lambda run: run.experiment.seed))) for group in groups.values())


def seedless(experiment: Experiment) -> Experiment:
    """What runs of one study have in common; which of them estimates an L that is wanted once is the sweep's choice."""
    lipschitz = {key: value for key, value in experiment.lipschitz.items() if key != "wanted"}
    return msgspec.structs.replace(without_plan(experiment), seed=0, lipschitz=lipschitz)


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


# What every table shows in a column of its own, or what does not change what a training is.
_OF_A_RUN = ("name", "summary", "seed", "arms", "sweep", "attacks", "decides", "record")
SHOWN = (*_OF_A_RUN, "data.name", "data.train_examples", "model")
SHOWN_OF_TRAINING = ("training.epochs", "training.batch_size", "training.objective", "training.schedule.rate")


def apart(experiments: Sequence[Experiment], shown: Sequence[str] = SHOWN + SHOWN_OF_TRAINING) -> list[str]:
    """Per experiment, what else than `shown` sets it apart from the others: `training.momentum 0.9`; or nothing."""
    flat = [flattened(experiment.to_json()) for experiment in experiments]
    same = (*shown, "lipschitz.wanted")  # which is of one run of a study
    keys = dict.fromkeys(key for values in flat for key in values if not _below(key, same))
    differing = [key for key in keys if any(values.get(key) != flat[0].get(key) for values in flat)]
    return [", ".join(f"{key} {values[key]}" for key in differing if values.get(key) is not None) for values in flat]


def _below(key: str, tables: Sequence[str]) -> bool:
    return any(key == table or key.startswith(f"{table}.") for table in tables)


def titles(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """Of each group: network and data, and what else sets its runs apart from the other groups'."""
    experiments = [group[0].experiment for group in groups]
    names = [f"{experiment.network}, {experiment.data_set}" for experiment in experiments]
    return [f"{name}\n{words}" if words else name for name, words in zip(names, apart(experiments), strict=True)]
