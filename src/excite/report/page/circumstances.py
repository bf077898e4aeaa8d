"""When and on what the runs of a page were done: what their stages kept when they ran, not what is here now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from excite.report.labels import duration
from excite.report.verdict import spent
from excite.runs.circumstances import Circumstances, StageDone
from excite.runs.folder import RunFolder


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
