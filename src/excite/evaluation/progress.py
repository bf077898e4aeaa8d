"""How far the stages of an attack have come, and which batches can be judged now."""

import dataclasses

import torch
from torch import Tensor

from excite.attacks.protocol import Attack
from excite.evaluation.batch import Task, Verdict
from excite.evaluation.result import Cost, Stage


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

    def take(self, task: Task, verdict: Verdict) -> None:
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
