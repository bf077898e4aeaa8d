"""Many run folders read together: the runs of a sweep, and which of them differ in nothing but the seed."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from excite.errors import InputError
from excite.runs.experiment import Experiment, without_plan
from excite.runs.folder import EXPERIMENT, Results, load_results


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one experiment under several seeds."""

    runs: tuple[Results, ...]

    @property
    def experiment(self) -> Experiment:
        return self.runs[0].experiment

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.experiment.seed for run in self.runs)


def collect(folders: Iterable[Path]) -> tuple[Results, ...]:
    """Every run in `folders`: a folder is a run folder, or holds run folders at any depth."""
    found: dict[Path, Results] = {}
    for folder in folders:
        recorded = sorted(folder.rglob(EXPERIMENT))
        if not recorded:
            raise InputError(f"There is no run in {folder}. `excite run` and `excite sweep` make run folders.")
        for path in recorded:
            found.setdefault(path.parent.resolve(), load_results(path.parent))
    return tuple(found.values())


def by_seed(runs: Iterable[Results]) -> tuple[Group, ...]:
    """Runs grouped by everything but their seed, in the order they came; inside a group by seed."""
    groups: dict[bytes, list[Results]] = {}
    for run in runs:
        key = msgspec.json.encode(msgspec.structs.replace(without_plan(run.experiment), seed=0), order="sorted")
        groups.setdefault(key, []).append(run)
    return tuple(Group(tuple(sorted(group, key=lambda run: run.experiment.seed))) for group in groups.values())
