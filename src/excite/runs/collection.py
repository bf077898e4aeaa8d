"""Groups of runs: the folders of an experiment, the runs in given folders, and the settings in which they differ."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from excite.errors import ExciteError, InputError
from excite.files import locked
from excite.runs.experiment import Experiment, flattened, with_values, without_plan
from excite.runs.folder import OUTCOME, STUDY, ArmFolder, RunFolder, run_folders_in, study_in
from excite.runs.records import Study

logger = logging.getLogger(__name__)


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
        """Every arm that was trained at some seed."""
        return list(dict.fromkeys(arm.name for run in self.runs for arm in run.arms))

    def arms(self, name: str) -> list[ArmFolder]:
        """The arm of this name at every seed where it was trained."""
        return [arm for run in self.runs for arm in run.arms if arm.name == name]


def run_folders(experiment: Experiment, folder: Path, seeds: int | None) -> dict[Path, Experiment]:
    """Return the run folders of an experiment: `folder` itself, or one inside it for each of the seeds 0, 1, …"""
    if seeds is None:
        if not RunFolder(folder).exists and any(map(_counts, run_folders_in(folder))):
            raise InputError(
                f"{folder} holds several runs. Name a new folder with --out for a single run, or pass --seeds."
            )
        return {folder: experiment}
    check_not_a_run(folder)
    return {folder / f"seed-{seed}": with_values(experiment, {"seed": seed}) for seed in range(seeds)}


def check_not_a_run(folder: Path) -> None:
    """Refuse to put several runs into the folder of a single run: a seed could be counted twice."""
    if RunFolder(folder).exists:
        raise InputError(
            f"{folder} holds a single run. Name a new folder with --out for several runs, or delete this one."
        )


def begin_study(folder: Path, runs: Iterable[Path]) -> None:
    """Record that the runs in `folder` form a study, or join it: only they share its L, not what else lies there."""
    file = folder / STUDY
    with locked(file):
        known = Study.load(file).runs if file.exists() else ()
        names = tuple(dict.fromkeys([*known, *(run.name for run in runs)]))
        if names != known:
            Study(names).save(file)


def collect(folders: Iterable[Path]) -> tuple[RunFolder, ...]:
    """Return every run in `folders`, at any depth; copies inside a study, and files of other tools, are left out."""
    collected: dict[Path, RunFolder] = {}
    for folder in folders:
        runs = [run for run in run_folders_in(folder) if run.path == folder or _counts(run)]
        if not runs:
            raise InputError(
                f"{folder} holds no run. Start one with `excite run EXPERIMENT --out {RunFolder(folder).quoted}`."
            )
        for run in runs:
            collected.setdefault(run.path.resolve(), run)
    return tuple(collected.values())


def _counts(run: RunFolder) -> bool:
    """Whether a run counts that nobody named; what stands in the way of a study is left out with a warning."""
    study = study_in(run.path.parent)
    if run.path.name in (member.path.name for member in study):
        return True
    try:
        experiment = without_plan(run.experiment)
    except (ExciteError, OSError) as error:
        is_run = any(run.path.glob(f"*/{OUTCOME}"))
        if is_run and study:
            logger.warning("%s is left out, because it is not of the study and cannot be read: %s", run.path, error)
        return is_run and not study
    copied = next((member for member in study if without_plan(member.experiment) == experiment), None)
    if copied:
        logger.warning("%s is left out, because it is a copy of %s, a run of the study.", run.path, copied.path.name)
    return not copied


def by_seed(runs: Iterable[RunFolder]) -> tuple[Group, ...]:
    """Group runs of the same experiment, in the order given; inside a group, sort by seed."""
    groups = [sorted(group, key=lambda run: run.experiment.seed) for group in _grouped(runs, seedless)]
    for run, other in (pair for group in groups for pair in pairwise(group)):
        if run.experiment.seed == other.experiment.seed:
            raise InputError(
                f"{run.path} and {other.path} hold the same experiment with the same seed, {run.experiment.seed}. "
                "Name one of them, or train another seed: --set seed=1."
            )
    return tuple(Group(tuple(group)) for group in groups)


def _grouped(runs: Iterable[RunFolder], key: Callable[[Experiment], object]) -> list[list[RunFolder]]:
    groups: dict[bytes, list[RunFolder]] = {}
    for run in runs:
        groups.setdefault(msgspec.json.encode(key(run.experiment), order="sorted"), []).append(run)
    return list(groups.values())


def seedless(experiment: Experiment) -> Experiment:
    """Return what the runs of one study have in common. A sweep sets lipschitz.wanted in one of its runs only."""
    lipschitz = {key: value for key, value in experiment.lipschitz.items() if key != "wanted"}
    return msgspec.structs.replace(without_plan(experiment), seed=0, lipschitz=lipschitz)


def same_but(key: Callable[[Experiment], Experiment], runs: Iterable[RunFolder]) -> list[list[RunFolder]]:
    """Group runs that are the same after `key` has removed the settings that may differ; name and seed always may."""
    always = {"name": "", "summary": "", "seed": 0, "arms": (), "sweep": {}, "lipschitz": None, "record": None}
    return _grouped(runs, lambda experiment: key(experiment).to_json() | always)


def without_rate(experiment: Experiment) -> Experiment:
    training = experiment.training
    schedule = {key: value for key, value in training.schedule.items() if key != "rate"}
    return msgspec.structs.replace(experiment, training=msgspec.structs.replace(training, schedule=schedule))


def without_batch_size(experiment: Experiment) -> Experiment:
    return msgspec.structs.replace(experiment, training=msgspec.structs.replace(experiment.training, batch_size=1))


# Settings that tables show in columns, or that do not change a training.
_OF_A_RUN = ("name", "summary", "seed", "arms", "sweep", "attacks", "decides", "record")
SHOWN = (*_OF_A_RUN, "data.name", "data.train_examples", "model")
SHOWN_OF_TRAINING = ("training.epochs", "training.batch_size", "training.objective", "training.schedule.rate")


def apart(experiments: Sequence[Experiment], shown: Sequence[str] = SHOWN + SHOWN_OF_TRAINING) -> list[str]:
    """Return for each experiment the settings, other than `shown`, in which they differ: `training.momentum 0.9`."""
    flat = [flattened(experiment.to_json()) for experiment in experiments]
    ignored = (*shown, "lipschitz.wanted")
    keys = dict.fromkeys(key for values in flat for key in values if not _below(key, ignored))
    differing = [key for key in keys if any(values.get(key) != flat[0].get(key) for values in flat)]
    return [", ".join(f"{key} {values[key]}" for key in differing if values.get(key) is not None) for values in flat]


def _below(key: str, tables: Sequence[str]) -> bool:
    return any(key == table or key.startswith(f"{table}.") for table in tables)


def titles(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """Return a title for each group: network and data, and the other settings in which the groups differ."""
    experiments = [group[0].experiment for group in groups]
    names = [f"{experiment.network}, {experiment.data_set}" for experiment in experiments]
    return [f"{name}\n{words}" if words else name for name, words in zip(names, apart(experiments), strict=True)]
