"""Many run folders read together: the runs of a sweep, and which of them differ in nothing but the seed."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from excite.errors import InputError
from excite.runs.experiment import Experiment, without_plan
from excite.runs.folder import RunFolder, run_folders_in


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
        key = msgspec.json.encode(msgspec.structs.replace(without_plan(run.experiment), seed=0), order="sorted")
        groups.setdefault(key, []).append(run)
    return tuple(Group(tuple(sorted(group, key=lambda run: run.experiment.seed))) for group in groups.values())
