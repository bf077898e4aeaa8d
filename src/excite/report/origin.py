"""Where a page comes from: when and on what its runs were made, and how to repeat them."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import tomli_w

from excite.errors import ExciteError
from excite.quantities import duration
from excite.runs import Experiment, catalogue, load
from excite.runs.arms import arm_named
from excite.runs.collection import Group
from excite.runs.experiment import flattened, without_plan
from excite.runs.folder import RunFolder
from excite.runs.records import Circumstances, StageDone


@dataclass(frozen=True)
class Place:
    """A machine with one set of versions, and the stages that ran on it, in the order of their start."""

    stages: Sequence[StageDone]

    @property
    def circumstances(self) -> Circumstances:
        return self.stages[0].circumstances

    @property
    def versions(self) -> str:
        return ", ".join(f"{name} {number}" for name, number in self.circumstances.versions.items())

    @property
    def time(self) -> str:
        return duration(sum(stage.seconds for stage in self.stages))

    @property
    def first(self) -> str:
        return _date(datetime.fromisoformat(self.stages[0].began).timestamp())

    @property
    def last(self) -> str:
        return _date(max(stage.ended for stage in self.stages))


def places(runs: Sequence[RunFolder]) -> list[Place]:
    """Where the stages of the runs were computed."""
    found: dict[str, list[StageDone]] = {}
    for stage in sorted((stage for run in runs for stage in run.stages), key=lambda stage: stage.began):
        found.setdefault(str(stage.circumstances), []).append(stage)
    return [Place(stages) for stages in found.values()]


def in_short(runs: Sequence[RunFolder]) -> dict[str, str]:
    """For the top of the page: the computing time, when the last stage ended, and on which machines."""
    facts = {"computing time": duration(sum(run.seconds for run in runs))}
    stages = [stage for run in runs for stage in run.stages]
    if stages:
        machines = dict.fromkeys(
            f"{at.machine}, {at.threads} thread{'s' if at.threads > 1 else ''}"
            for at in (stage.circumstances for stage in stages)
        )
        facts |= {"finished": _date(max(stage.ended for stage in stages)), "on": " and ".join(machines)}
    return facts


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def commands(group: Group) -> list[str]:
    """The `excite run NAME --set …` that repeat the runs; empty if --set cannot express the experiment.

    One command for the seeds 0, 1, …; otherwise one per seed.
    """
    experiment, seeds = group.experiment, group.seeds
    if experiment.name not in catalogue():
        return []
    shipped = load(experiment.name)
    changes = _changes(shipped, experiment)
    if changes is None:
        return []
    trained = group.arm_names
    arms = ["--arms", ",".join(trained)] if trained and set(trained) != _arm_names(shipped) else []
    words = ["excite", "run", experiment.name, *arms, *(word for change in changes for word in ("--set", change))]
    if len(seeds) > 1 and seeds == tuple(range(len(seeds))):
        return [shlex.join([*words, "--seeds", str(len(seeds))])]
    if len(seeds) == 1:
        return [shlex.join(words + (["--set", f"seed={seed}"] if seed != shipped.seed else [])) for seed in seeds]
    return [
        shlex.join([*words, "--set", f"seed={seed}", "--out", f"runs/{experiment.name}/seed-{seed}"]) for seed in seeds
    ]


def _changes(shipped: Experiment, experiment: Experiment) -> list[str] | None:
    """The arguments of --set besides the seed; None if --set cannot express them, for example a name with a dot."""
    seedless = msgspec.structs.replace(without_plan(experiment), seed=shipped.seed)
    before, after = (flattened(without_plan(one).to_json()) for one in (shipped, seedless))
    changes = [
        f"{key}={toml_value(value)}" for key, value in after.items() if value is not None and before.get(key) != value
    ]
    try:
        return changes if without_plan(load(experiment.name, overrides=changes)) == seedless else None
    except ExciteError:
        return None


def _arm_names(experiment: Experiment) -> set[str]:
    return {arm_named(arm).name for arm in experiment.arms}


def summary(experiment: Experiment) -> str:
    """The experiment's own summary, or what was changed if it differs from the catalogue's."""
    if experiment.name not in catalogue():
        return experiment.summary
    shipped, given = (flattened(without_plan(one).to_json()) for one in (load(experiment.name), experiment))
    changed = [key for key in shipped.keys() | given.keys() if shipped.get(key) != given.get(key) and key != "seed"]
    if not changed:
        return experiment.summary
    words = [
        f"{key} = {toml_value(value)}"
        for key, value in given.items()
        if key in changed and not key.startswith("attacks.")
    ]
    words += ["other attacks"] if any(key.startswith("attacks.") for key in changed) else []
    return f"{experiment.name} of the catalogue, with changes: {', '.join(words)}."


def toml(experiment: Experiment) -> str:
    """The experiment as a TOML file for `excite run FILE.toml`."""
    return tomli_w.dumps(_without_none(experiment.to_json()))


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def toml_value(value: Any) -> str:
    """A number, a string or a list as TOML on one line, which is the same as JSON.

    >>> print(toml_value(["pgd", 0.1, True]))
    ["pgd", 0.1, true]
    """
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
