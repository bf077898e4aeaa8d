"""Where a page comes from: when and on what its runs were done, and how to do them again."""

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
from excite.report.verdict import spent
from excite.runs import Experiment, catalogue, load
from excite.runs.arms import arm_named
from excite.runs.collection import Group
from excite.runs.experiment import flattened, without_plan
from excite.runs.folder import RunFolder
from excite.runs.records import Circumstances, StageDone


@dataclass(frozen=True)
class Place:
    """One machine with one set of versions: the stages that were done there."""

    circumstances: Circumstances
    stages: int
    seconds: float
    first: str
    last: str

    @property
    def versions(self) -> str:
        return ", ".join(f"{name} {number}" for name, number in self.circumstances.versions.items())

    @property
    def time(self) -> str:
        return duration(self.seconds)


def places(runs: Sequence[RunFolder]) -> list[Place]:
    """Each in which a stage of the runs was done, in the order of their first stage."""
    found: dict[str, list[StageDone]] = {}
    for stage in sorted((stage for run in runs for stage in run.stages), key=lambda stage: stage.began):
        found.setdefault(str(stage.circumstances), []).append(stage)
    return [
        Place(
            circumstances=stages[0].circumstances,
            stages=len(stages),
            seconds=sum(stage.seconds for stage in stages),
            first=_date(datetime.fromisoformat(stages[0].began).timestamp()),
            last=_date(max(stage.ended for stage in stages)),
        )
        for stages in found.values()
    ]


def in_short(runs: Sequence[RunFolder]) -> dict[str, str]:
    """For the page's first lines: the time of all stages, when the last one ended, and where."""
    seconds = sum(_computed(run) for run in runs)
    stages = [stage for run in runs for stage in run.stages]
    facts = {"computing time": duration(seconds)}
    if stages:
        machines = dict.fromkeys(
            f"{at.machine}, {at.threads} thread{'s' if at.threads > 1 else ''}"
            for at in (stage.circumstances for stage in stages)
        )
        facts |= {"finished": _date(max(stage.ended for stage in stages)), "on": " and ".join(machines)}
    return facts


def _computed(run: RunFolder) -> float:
    """Of every go at every stage; where they were not all kept, what trainings, attacks and L say themselves."""
    kept = {stage.file for stage in run.stages}
    whole = all(f"{arm.name}/{arm.outcome_file.name}" in kept for arm in run.arms)
    return sum(stage.seconds for stage in run.stages) if whole and kept else spent(run)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def commands(group: Group) -> list[str]:
    """`excite run NAME --set …` with every key that differs from the catalogue's file, if that says it all.

    One command for the seeds 0, 1, …, and one per seed where they are others.
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


def summary(experiment: Experiment) -> str:
    """What the experiment says of itself; where it was changed from the catalogue's, what was changed instead."""
    if experiment.name not in catalogue():
        return experiment.summary
    shipped, given = (flattened(without_plan(one).to_json()) for one in (load(experiment.name), experiment))
    changed = [key for key in shipped.keys() | given.keys() if shipped.get(key) != given.get(key) and key != "seed"]
    if not changed:
        return experiment.summary
    told = {key: f"{key} = {toml_value(given[key])}" for key in given if key in changed and not _of_attacks(key)}
    words = [*told.values(), *(["other attacks"] if any(map(_of_attacks, changed)) else [])]
    return f"The catalogue's {experiment.name}, changed: {', '.join(words)}."


def _of_attacks(key: str) -> bool:
    return key.startswith("attacks.")


def _changes(shipped: Experiment, experiment: Experiment) -> list[str] | None:
    """What --set must be given besides the seed; None where it cannot say it, say for a name with a dot in it."""
    seedless = msgspec.structs.replace(without_plan(experiment), seed=shipped.seed)
    before = flattened(without_plan(shipped).to_json())
    after = flattened(seedless.to_json())
    changes = [
        f"{key}={toml_value(value)}" for key, value in after.items() if value is not None and before.get(key) != value
    ]
    try:
        return changes if without_plan(load(experiment.name, overrides=changes)) == seedless else None
    except ExciteError:
        return None


def _arm_names(experiment: Experiment) -> set[str]:
    return {arm_named(arm).name for arm in experiment.arms}


def toml(experiment: Experiment) -> str:
    """The experiment as a TOML file that `excite run FILE.toml` takes."""
    return tomli_w.dumps(_stated(experiment.to_json()))


def _stated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was left out, which TOML has no word for."""
    return {
        key: _stated(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def toml_value(value: Any) -> str:
    """A number, a text or a list of them as TOML writes it, on one line: that of JSON.

    >>> print(toml_value(["pgd", 0.1, True]))
    ["pgd", 0.1, true]
    """
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
