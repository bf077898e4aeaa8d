"""What a killed evaluation goes on from: rewritten atomically after every batch of every attack."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from excite.errors import CorruptFileError, InputError
from excite.evaluation.result import Cost, Stage, pack, unpack
from excite.evaluation.trust import Flag
from excite.files import read_json, write_json


@dataclasses.dataclass
class Progress:
    """How far one attack has come: stage by stage, batch by batch of the examples standing when the stage began."""

    standing: Tensor
    stage_began_with: Tensor
    batches_done: int = 0
    stage_cost: Cost = dataclasses.field(default_factory=Cost)
    stages: list[Stage] = dataclasses.field(default_factory=list)

    def finish_stage(self, name: str) -> None:
        self.stages.append(Stage(name, int(self.standing.sum()), self.stage_cost))
        self.stage_began_with = self.standing.clone()
        self.batches_done = 0
        self.stage_cost = Cost()


class Journal:
    """Progress of every attack and the warnings raised on the way, in one file; without a path, in memory only."""

    def __init__(self, path: Path | None, *, key: str, correct: Tensor) -> None:
        self._path = path
        self._key = key
        self._correct = correct
        self._progress: dict[str, Progress] = {}
        self.flags: list[Flag] = []
        self.checked = False
        self.cost_of_checks = Cost()
        if path is not None and path.exists():
            self._read(path)

    def progress(self, attack: str) -> Progress:
        if attack not in self._progress:
            self._progress[attack] = Progress(self._correct.clone(), self._correct.clone())
        return self._progress[attack]

    def add_flags(self, flags: Iterable[Flag | None]) -> None:
        """Add those that are new; two that differ in their figures only count as one."""
        for flag in flags:
            if flag is not None and _words(flag) not in map(_words, self.flags):
                self.flags.append(flag)

    def write(self) -> None:
        if self._path is not None:
            write_json(self._path, self._to_json())

    def _to_json(self) -> dict[str, Any]:
        return {
            "evaluation": self._key,
            "attacks": {
                name: {
                    "standing": pack(progress.standing),
                    "stage_began_with": pack(progress.stage_began_with),
                    "batches_done": progress.batches_done,
                    "stage_cost": dataclasses.asdict(progress.stage_cost),
                    "stages": [dataclasses.asdict(stage) for stage in progress.stages],
                }
                for name, progress in self._progress.items()
            },
            "flags": [dataclasses.asdict(flag) for flag in self.flags],
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
            total = len(self._correct)
            for name, saved in value["attacks"].items():
                self._progress[name] = Progress(
                    standing=unpack(saved["standing"], total),
                    stage_began_with=unpack(saved["stage_began_with"], total),
                    batches_done=saved["batches_done"],
                    stage_cost=Cost(**saved["stage_cost"]),
                    stages=[Stage(s["name"], s["standing"], Cost(**s["cost"])) for s in saved["stages"]],
                )
            self.flags = [Flag(**flag) for flag in value["flags"]]
            self.checked = value["checked"]
            self.cost_of_checks = Cost(**value["cost_of_checks"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise CorruptFileError(f"{path} is no journal of an evaluation ({error!r}); delete it.") from error


def _words(flag: Flag) -> str:
    return re.sub(r"[\d.%]+", "", str(flag))
