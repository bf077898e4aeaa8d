"""What has been judged and what remains, stage by stage and batch by batch: a killed evaluation goes on from here."""

import dataclasses
import heapq
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excite.attacks.protocol import Attack
from excite.errors import CorruptFileError, InputError
from excite.evaluation.accuracy import pack, pack_rows, unpack, unpack_rows
from excite.evaluation.batch import Ruling, Task
from excite.evaluation.result import Cost, Flag, Stage
from excite.files import read_json, write_json
from excite.quantities import OnProgress

LAST = (2**31, 0, 0)  # the address of what no batch said: after all of them


@dataclasses.dataclass
class Unattacked:
    """Where the first stage begins."""

    fell_at: Tensor  # see `Curve`

    @property
    def settled(self) -> int:
        return len(self.fell_at)


@dataclasses.dataclass
class Progress:
    """How far one stage of an attack has come, batch by batch of the examples that withstood the stages before.

    Batches follow the order of the examples. So a stage need not wait for the end of the one before it: a batch is
    known once that one is settled up to the batch's last example.
    """

    name: str
    rungs: int
    before: "Unattacked | Progress"
    judged: Tensor  # per example, whether this stage has
    found: Tensor  # at which radius they fell, of those
    cost: Cost = dataclasses.field(default_factory=Cost)

    @property
    def fell_at(self) -> Tensor:
        """After this stage, as far as it has come."""
        return torch.where(self.judged, self.found, self.before.fell_at)

    @property
    def entering(self) -> Tensor:
        """The examples that it has to judge, as far as the stage before is settled."""
        return (self.before.fell_at[: self.before.settled] > 1).nonzero().squeeze(1)

    @property
    def settled(self) -> int:
        """How many examples, from the first on, will not change any more."""
        entering = self.entering
        waiting = entering[~self.judged[entering]]
        return int(waiting[0]) if len(waiting) else self.before.settled

    @property
    def finished(self) -> bool:
        return self.settled == len(self.judged)

    def batches(self, size: int) -> list[Tensor]:
        """The examples of each that is known."""
        batches = [batch for batch in torch.split(self.entering, size) if len(batch)]
        may_grow = self.before.settled < len(self.judged)
        return [batch for batch in batches if len(batch) == size or not may_grow]

    def take(self, task: Task, verdict: Ruling) -> None:
        examples = torch.tensor(task.examples)
        self.judged[examples] = True
        self.found[examples] = torch.tensor(verdict.fell_at)
        self.cost += verdict.cost

    @property
    def result(self) -> Stage:
        return Stage(self.name, int((self.fell_at > self.rungs).sum()), self.cost)


def beginning(name: str, attack: Attack, correct: Tensor) -> list[Progress]:
    """Of each stage of an attack that `name` stands for."""
    rungs, stages = len(attack.rungs), list[Progress]()
    unattacked = Unattacked(correct.long() * (rungs + 1))
    for member, _ in attack.stages:
        nobody, nothing = torch.zeros_like(correct), torch.zeros_like(unattacked.fell_at)
        stages.append(Progress(member or name, rungs, stages[-1] if stages else unattacked, nobody, nothing))
    return stages


class Journal:
    """Progress of every attack and the warnings raised on the way, in one file that is rewritten after every batch.

    Without a path, in memory only.
    """

    def __init__(self, path: Path | None, *, key: str, correct: Tensor, attacks: Mapping[str, Attack]) -> None:
        self._path = path
        self._key = key
        self.progress = {name: beginning(name, attack, correct) for name, attack in attacks.items()}
        self._flags: dict[tuple[int, int, int], tuple[Flag, ...]] = {}
        self.checked = False
        self.cost_of_checks = Cost()
        if path is not None and path.is_dir():
            raise InputError(f"The journal {path} is a folder; name a file, such as {path / 'evaluation.journal'}.")
        if path is not None and path.exists():
            self._read(path)

    @property
    def flags(self) -> list[Flag]:
        """Each once, in the order of the batches that raised them; two of one name that differ in figures are one."""
        distinct: dict[tuple[str, str], Flag] = {}
        for _, flags in sorted(self._flags.items()):
            for flag in flags:
                distinct.setdefault((flag.name, re.sub(r"[\d.%]+", "", flag.message)), flag)
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
                name: [
                    {
                        "judged": pack(stage.judged),
                        "standing": pack_rows(stage.fell_at, stage.rungs),
                        "cost": dataclasses.asdict(stage.cost),
                    }
                    for stage in stages
                ]
                for name, stages in self.progress.items()
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
            for name, stages in self.progress.items():
                for stage, saved in zip(stages, value["attacks"][name], strict=True):
                    fell_at = unpack_rows(saved["standing"], stage.before.fell_at > 0)
                    stage.judged = torch.from_numpy(unpack(saved["judged"], len(fell_at)))
                    stage.found, stage.cost = torch.from_numpy(fell_at), Cost(**saved["cost"])
            for address, flags in value["flags"]:
                self.add_flags(tuple(address), [Flag(**flag) for flag in flags])
            self.checked = value["checked"]
            self.cost_of_checks = Cost(**value["cost_of_checks"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise CorruptFileError(f"{path} is no journal of an evaluation ({error!r}); delete it.") from error


class Agenda:
    """What remains: batches that are known, in the order in which one process alone would judge them."""

    def __init__(self, journal: Journal, batch_size: int, on_progress: OnProgress | None) -> None:
        self._journal, self._batch_size, self._on_progress = journal, batch_size, on_progress
        self._listed: set[tuple[int, int, int]] = set()
        self._waiting: list[Task] = []
        for name in journal.progress:
            self._list(name)

    def next(self) -> Task | None:
        """The first batch that nobody judges yet; none also where all others wait for verdicts."""
        return heapq.heappop(self._waiting) if self._waiting else None

    def take(self, task: Task, verdict: Ruling) -> None:
        stages = self._journal.progress[task.attack]
        stages[task.stage].take(task, verdict)
        self._journal.add_flags(task.address, verdict.flags)
        self._list(task.attack)
        self._journal.write()
        if self._on_progress is not None:
            told = next((stage for stage in stages[: task.stage] if not stage.finished), stages[task.stage])
            self._on_progress(int(told.judged.sum()), len(told.entering))

    def _list(self, name: str) -> None:
        """Those batches of an attack that are known by now."""
        attack = list(self._journal.progress).index(name)
        for number, stage in enumerate(self._journal.progress[name]):
            fell_at = stage.before.fell_at
            for batch, examples in enumerate(stage.batches(self._batch_size)):
                address = attack, number, batch
                if address not in self._listed and not bool(stage.judged[examples[0]]):
                    self._listed.add(address)
                    fell_before = tuple(fell_at[examples].tolist())
                    heapq.heappush(self._waiting, Task(*address, name, tuple(examples.tolist()), fell_before))
