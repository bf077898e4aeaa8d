"""What has been judged and what remains: a killed evaluation goes on from here, as one process alone would do it."""

import dataclasses
import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excite.attacks.protocol import Attack
from excite.errors import CorruptFileError, InputError
from excite.evaluation.batch import Task, Verdict
from excite.evaluation.outcomes import pack_rows, unpack_rows
from excite.evaluation.result import Cost, Flag, Stage
from excite.evaluation.shards import Engine
from excite.files import read_json, write_json

OnProgress = Callable[[int, int], None]
LAST = (2**31, 0, 0)  # the address of what no batch said: after all of them


@dataclasses.dataclass
class Progress:
    """How far one attack has come: stage by stage, batch by batch of the examples standing when the stage began."""

    rungs: int
    fell_at: Tensor  # see `Curve`
    stage_began_with: Tensor
    done: set[int] = dataclasses.field(default_factory=set)  # batches of the stage
    stage_cost: Cost = dataclasses.field(default_factory=Cost)
    stages: list[Stage] = dataclasses.field(default_factory=list)

    @classmethod
    def beginning(cls, correct: Tensor, rungs: int) -> "Progress":
        fell_at = correct.long() * (rungs + 1)
        return cls(rungs, fell_at, fell_at.clone())

    def batches(self, batch_size: int) -> tuple[Tensor, ...]:
        """The examples of each batch of the stage."""
        standing = (self.stage_began_with > 1).nonzero().squeeze(1)
        return torch.split(standing, batch_size) if len(standing) else ()

    def take(self, task: Task, verdict: Verdict) -> None:
        self.fell_at[torch.tensor(task.examples)] = torch.tensor(verdict.fell_at)
        self.done.add(task.number)
        self.stage_cost += verdict.cost

    def finish_stage(self, name: str) -> None:
        self.stages.append(Stage(name, int((self.fell_at > self.rungs).sum()), self.stage_cost))
        self.stage_began_with = self.fell_at.clone()
        self.done, self.stage_cost = set(), Cost()


class Journal:
    """Progress of every attack and the warnings raised on the way, in one file that is rewritten after every batch.

    Without a path, in memory only.
    """

    def __init__(self, path: Path | None, *, key: str, correct: Tensor, attacks: Mapping[str, Attack]) -> None:
        self._path = path
        self._key = key
        self.progress = {name: Progress.beginning(correct, len(attack.rungs)) for name, attack in attacks.items()}
        self._flags: dict[tuple[int, int, int], tuple[Flag, ...]] = {}
        self.checked = False
        self.cost_of_checks = Cost()
        if path is not None and path.exists():
            self._read(path)

    @property
    def flags(self) -> list[Flag]:
        """Each once, in the order of the batches that raised them; two that differ in figures only count as one."""
        distinct: dict[str, Flag] = {}
        for _, flags in sorted(self._flags.items()):
            for flag in flags:
                distinct.setdefault(re.sub(r"[\d.%]+", "", str(flag)), flag)
        return list(distinct.values())

    def add_flags(self, address: tuple[int, int, int], flags: Iterable[Flag | None]) -> None:
        raised = tuple(flag for flag in flags if flag is not None)
        if raised:
            self._flags[address] = raised

    def write(self) -> None:
        if self._path is not None:
            write_json(self._path, self._to_json())

    def _to_json(self) -> dict[str, Any]:
        return {
            "evaluation": self._key,
            "attacks": {
                name: {
                    "standing": pack_rows(progress.fell_at, progress.rungs),
                    "stage_began_with": pack_rows(progress.stage_began_with, progress.rungs),
                    "batches_done": sorted(progress.done),
                    "stage_cost": dataclasses.asdict(progress.stage_cost),
                    "stages": [dataclasses.asdict(stage) for stage in progress.stages],
                }
                for name, progress in self.progress.items()
            },
            "flags": [
                [address, [dataclasses.asdict(flag) for flag in flags]] for address, flags in self._flags.items()
            ],
            "checked": self.checked,
            "cost_of_checks": dataclasses.asdict(self.cost_of_checks),
        }

    def _read(self, path: Path) -> None:
        value = read_json(path)
        try:
            if value["evaluation"] != self._key:
                raise InputError(
                    f"{path} belongs to another evaluation (another model, other examples, attacks, batch size or "
                    "seed). Delete it to start again, or resume from a file of its own."
                )
            for name, saved in value["attacks"].items():
                progress = self.progress[name]
                correct = progress.fell_at > 0
                self.progress[name] = Progress(
                    rungs=progress.rungs,
                    fell_at=torch.from_numpy(unpack_rows(saved["standing"], correct)),
                    stage_began_with=torch.from_numpy(unpack_rows(saved["stage_began_with"], correct)),
                    done=set(saved["batches_done"]),
                    stage_cost=Cost(**saved["stage_cost"]),
                    stages=[Stage(s["name"], s["standing"], Cost(**s["cost"])) for s in saved["stages"]],
                )
            for address, flags in value["flags"]:
                self.add_flags(tuple(address), [Flag(**flag) for flag in flags])
            self.checked = value["checked"]
            self.cost_of_checks = Cost(**value["cost_of_checks"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise CorruptFileError(f"{path} is no journal of an evaluation ({error!r}); delete it.") from error


class Agenda:
    """What remains. The batches of a stage have no order; the next stage regroups those that withstood, so it waits."""

    def __init__(self, attacks: Mapping[str, Attack], journal: Journal, batch_size: int) -> None:
        self._attacks, self._journal, self._batch_size = attacks, journal, batch_size
        self.waiting: list[Task] = []
        for name in attacks:
            self._open_stage(name)

    def work_off(self, engine: Engine, on_progress: OnProgress | None) -> None:
        running = 0
        while self.waiting or running:
            while self.waiting and running < engine.capacity:
                engine.submit(heapq.heappop(self.waiting))
                running += 1
            task, verdict = engine.collect()
            running -= 1
            state = self._journal.progress[task.attack]
            state.take(task, verdict)
            self._journal.add_flags(task.address, verdict.flags)
            batches = state.batches(self._batch_size)
            examples = sum(len(batch) for number, batch in enumerate(batches) if number in state.done)
            if len(state.done) == len(batches):
                self._close_stage(task.attack)
                self._open_stage(task.attack)
            self._journal.write()
            if on_progress is not None:
                on_progress(examples, sum(map(len, batches)))

    def _open_stage(self, name: str) -> None:
        """Put the open batches of the attack's next stage that has any on the list; a stage without any is over."""
        state, number = self._journal.progress[name], list(self._attacks).index(name)
        while (stage := len(state.stages)) < len(self._attacks[name].stages):
            for batch, examples in enumerate(state.batches(self._batch_size)):
                if batch not in state.done:
                    fell_at = tuple(state.fell_at[examples].tolist())
                    heapq.heappush(self.waiting, Task(number, stage, batch, name, tuple(examples.tolist()), fell_at))
            if len(state.done) < len(state.batches(self._batch_size)):
                return
            self._close_stage(name)

    def _close_stage(self, name: str) -> None:
        state = self._journal.progress[name]
        stage_name, _ = self._attacks[name].stages[len(state.stages)]
        state.finish_stage(stage_name or name)
