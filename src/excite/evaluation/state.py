"""How far an evaluation has come: one `AttackState` per attack, saved after every batch so that it can be resumed."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from excite.attacks.protocol import Attack
from excite.errors import CorruptFileError, InputError
from excite.evaluation.result import Cost, Flag, Stage
from excite.files import read_json, write_json


@dataclass(frozen=True)
class Batch:
    """Examples that are attacked together. Its number seeds the attack's generator."""

    number: int
    examples: list[int]


@dataclass(frozen=True)
class BatchResult:
    """At which radius each example of a batch fell (see `Curve`), what that cost, and warnings of the attack."""

    fell_at: list[int]
    cost: Cost
    flags: list[Flag]


@dataclass
class AttackState:
    """Which examples fell to one attack, at which radius, and which batches of the current stage are left.

    Each stage attacks, in new batches, the examples that withstood the stages before.
    """

    n_radii: int
    stage_names: list[str]
    fell_at: list[int]  # per example, see `Curve`
    stages: list[Stage] = field(default_factory=list)  # those that are finished
    left: list[Batch] = field(default_factory=list)  # of the current stage
    n_entered: int = 0  # examples that the current stage has to attack
    cost: Cost = field(default_factory=Cost)  # of the current stage so far
    flags: list[tuple[int, int, list[Flag]]] = field(default_factory=list)  # by stage and batch

    @classmethod
    def start(cls, name: str, attack: Attack, correct: Iterable[bool], batch_size: int) -> "AttackState":
        n_radii = len(attack.rungs)
        stage_names = [stage or name for stage, _ in attack.stages]
        state = cls(n_radii, stage_names, [(n_radii + 1) * int(right) for right in correct])
        state._split(batch_size)
        return state

    @property
    def finished(self) -> bool:
        return len(self.stages) == len(self.stage_names)

    @property
    def n_done(self) -> int:
        return self.n_entered - sum(len(batch.examples) for batch in self.left)

    @property
    def robust(self) -> NDArray[np.bool_]:
        """Per example, whether it withstood the attack at the largest radius."""
        return np.asarray(self.fell_at) > self.n_radii

    def fallen(self, batch: Batch) -> list[int]:
        return [self.fell_at[example] for example in batch.examples]

    def update(self, batch: Batch, result: BatchResult) -> None:
        for example, fell_at in zip(batch.examples, result.fell_at, strict=True):
            self.fell_at[example] = fell_at
        self.left.remove(batch)
        self.cost += result.cost
        if result.flags:
            self.flags.append((len(self.stages), batch.number, result.flags))

    def next_stage(self, batch_size: int) -> None:
        """Close the current stage; batches of the next one are made of the examples that are left."""
        self.stages.append(Stage(self.stage_names[len(self.stages)], int(self.robust.sum()), self.cost))
        self.cost = Cost()
        self._split(batch_size)

    def _split(self, batch_size: int) -> None:
        standing = [example for example, fell_at in enumerate(self.fell_at) if fell_at > 1]
        starts = range(0, len(standing), batch_size)
        self.left = [Batch(n, standing[start : start + batch_size]) for n, start in enumerate(starts)]
        self.n_entered = len(standing)


@dataclass(frozen=True)
class Checks:
    """What the trust checks found, and what they cost."""

    flags: list[Flag]
    cost: Cost


@dataclass
class Journal:
    """The state of an unfinished evaluation, as its file holds it."""

    evaluation: str  # names model, examples, attacks, batch size and seed
    attacks: dict[str, AttackState]
    checks: Checks | None = None

    @classmethod
    def open(
        cls, path: Path | None, evaluation: str, attacks: Mapping[str, Attack], correct: Iterable[bool], batch_size: int
    ) -> "Journal":
        """Read `path` to resume from it; start anew where there is no file, or one of an older version of excite."""
        if path is not None and path.is_dir():
            raise InputError(f"The journal {path} is a folder; name a file, such as {path / 'evaluation.journal'}.")
        if path is not None and path.exists():
            stored = read_json(path)
            if "evaluation" not in stored:
                raise CorruptFileError(f"{path} is not the journal of an evaluation; delete it, or name another file.")
            if stored["evaluation"] != evaluation:
                raise InputError(
                    f"{path} belongs to another evaluation (another model, other examples, attacks, batch size or "
                    "seed). Delete it to start again, or name another file."
                )
            try:
                return msgspec.convert(stored, cls)
            except msgspec.ValidationError:
                pass  # it is as it was written, for its hash fits: an older version wrote it
        correct = list(correct)
        states = {name: AttackState.start(name, attack, correct, batch_size) for name, attack in attacks.items()}
        return cls(evaluation, states)

    @property
    def cost_of_checks(self) -> Cost:
        return self.checks.cost if self.checks else Cost()

    def save(self, path: Path | None) -> None:
        if path is not None:
            write_json(path, asdict(self))

    @property
    def flags(self) -> list[Flag]:
        """In the order of the batches that raised them. Of several that differ in numbers only, the first."""
        raised = [flag for state in self.attacks.values() for _, _, flags in sorted(state.flags) for flag in flags]
        distinct: dict[tuple[str, str], Flag] = {}
        for flag in [*raised, *(self.checks.flags if self.checks else [])]:
            distinct.setdefault((flag.name, re.sub(r"[\d.%]+", "", flag.message)), flag)
        return list(distinct.values())
