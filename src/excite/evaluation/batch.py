"""Attack one batch of images, here or in a worker, and record which images of an evaluation have fallen so far.

The record is one `AttackState` per attack. A `Journal` saves them after every batch, so that it can be resumed.
"""

import itertools
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excite.attacks.fast_model import PROBES, fast_inference
from excite.attacks.geometry import distance
from excite.attacks.protocol import Attack, AttackWarning, right_answers
from excite.errors import InputError
from excite.evaluation.result import Cost, Stage
from excite.execution import Executor, Shared, as_completed
from excite.files import read_as, write_json
from excite.precision import Precision, exact_products
from excite.randomness import device_of, seeded
from excite.training import keep_freed_memory

ROUNDING = 1e-6


@dataclass(frozen=True)
class Batch:
    """Examples that are attacked together. Its number seeds the attack's generator."""

    number: int
    examples: list[int]


FellAt = list[int]  # at which radius each example of a batch fell, see `Curve`


class Attacker:
    """Attacks batches of examples: the same batch gives the same result in every process.

    Attacks see a faster copy of the model, in the given precision, but the model itself decides, in float32, whether
    the attacked image is misclassified. Radii are tried from the largest down. An example that falls is attacked at the
    next smaller radius, starting from the image that fooled the model, or further down if that image lies in a smaller
    ball. An example that withstands is not attacked at smaller radii.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        attacks: Mapping[str, Attack],
        *,
        seed: int,
        precision: Precision = "float32",
        pool: Executor | None = None,
    ) -> None:
        keep_freed_memory()
        self.model, self.x, self.y, self.attacks, self.seed = model, x, y, attacks, seed
        self.fast_model = fast_inference(model, precision=precision)
        self.fast_model.compare(self.examples(torch.arange(len(x))[:PROBES])[0])
        self._pool, self._shared = pool, pool and pool.share((model, x, y, attacks, seed, precision))

    def attack(self, name: str, state: "AttackState") -> Iterator[tuple[Batch, tuple[FellAt, Cost]]]:
        """Attack the batches that are left of the current stage, here or in workers; yield each with its result."""
        stage = len(state.stages)
        if self._pool is None:
            for batch in list(state.left):
                yield batch, self.attack_batch(name, stage, batch, state.fallen(batch))
        else:
            device = "cuda" if device_of(self.model, self.x).type == "cuda" else "cpu"
            calls = [(batch, (self._shared, device, name, stage, batch, state.fallen(batch))) for batch in state.left]
            yield from as_completed(self._pool, _attack_in_worker, calls)

    def attack_batch(self, name: str, stage_number: int, batch: Batch, fell_before: FellAt) -> tuple[FellAt, Cost]:
        """Run one stage of the attack `name`; `fell_before` says at which radius each example has fallen so far."""
        cost_before = self.cost_so_far()
        x, y = self.examples(torch.tensor(batch.examples))
        rungs = self.attacks[name].rungs
        fell_at, best, n_checked = torch.tensor(fell_before), x.clone(), 0
        has_start = torch.zeros(len(x), dtype=torch.bool)  # an image that fooled the model in a larger ball
        for rung, from_start in itertools.product(range(len(rungs), 0, -1), (False, True)):
            active = ((fell_at == rung + 1) & (has_start == from_start)).nonzero().squeeze(1)
            if len(active) == 0:
                continue
            stage_name, stage = rungs[rung - 1].stages[stage_number]
            label = f"{name}/{stage_name}" if stage_name else name
            address = [rung, int(from_start)] if rung < len(rungs) else []
            generator = seeded(self.seed, label, batch.number, *address)
            here = active.to(x.device)
            with warnings.catch_warnings(action="ignore", category=AttackWarning):  # the result has `Attack.doubts`
                if from_start:
                    x_adv = stage.go_on(self.fast_model, x[here], y[here], generator, best[here])
                else:
                    x_adv = stage(self.fast_model, x[here], y[here], generator)
            _check_inside(x_adv, x[here], stage, label)
            with torch.no_grad(), exact_products(x.device):
                wrong = ~right_answers(self.model(x_adv), y[here]).cpu()
            best[here] = x_adv
            has_start[active[wrong]] = True
            reached = torch.full_like(active, rung)
            if rung > 1 and stage.norm is not None:
                radii = torch.tensor([smaller.eps for smaller in rungs[: rung - 1]], dtype=torch.float64)
                reached = 1 + torch.searchsorted(radii, distance(x_adv, x[here], norm=stage.norm))
            fell_at[active[wrong]] = reached[wrong]
            n_checked += len(active)
        return fell_at.tolist(), self.cost_so_far() - cost_before + Cost(forwards=n_checked)

    def examples(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        device = device_of(self.model, self.x)
        return self.x[numbers.to(self.x.device)].to(device), self.y[numbers.to(self.y.device)].to(device)

    def cost_so_far(self) -> Cost:
        return Cost(time.perf_counter(), self.fast_model.forwards, self.fast_model.backwards)


def _attack_in_worker(shared: Shared, device: str, *arguments: Any) -> tuple[FellAt, Cost]:
    return _worker_attacker(shared, device).attack_batch(*arguments)


@lru_cache(maxsize=1)
def _worker_attacker(shared: Shared, device: str) -> Attacker:
    model, x, y, attacks, seed, precision = shared.load()
    return Attacker(model.to(device), x, y, attacks, seed=seed, precision=precision)


def _check_inside(x_adv: Tensor, x: Tensor, attack: Attack, label: str) -> None:
    """Refuse results of an attack that leaves [0, 1], or the ball that it announces."""
    if x_adv.shape != x.shape or not bool(((x_adv >= 0) & (x_adv <= 1)).all()):
        raise InputError(f"The attack {label} returned images outside [0, 1] or of another shape; clamp them.")
    if attack.eps is None or attack.norm is None:
        return
    furthest = float(distance(x_adv, x, norm=attack.norm).max())
    if furthest > attack.eps + ROUNDING * max(1.0, attack.eps):
        raise InputError(f"The attack {label} moved an image by {furthest:g}, more than its eps={attack.eps:g}.")


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

    def fallen(self, batch: Batch) -> FellAt:
        return [self.fell_at[example] for example in batch.examples]

    def update(self, batch: Batch, fell_at: FellAt, cost: Cost) -> None:
        for example, radius in zip(batch.examples, fell_at, strict=True):
            self.fell_at[example] = radius
        self.left.remove(batch)
        self.cost += cost

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


@dataclass
class Journal:
    """The state of an unfinished evaluation, as its file holds it."""

    evaluation: str  # names model, examples, attacks, batch size and seed
    attacks: dict[str, AttackState]

    @classmethod
    def open(
        cls, path: Path | None, evaluation: str, attacks: Mapping[str, Attack], correct: Iterable[bool], batch_size: int
    ) -> "Journal":
        """Read `path` to resume from it; start anew if there is no such file."""
        if path is not None and path.is_dir():
            raise InputError(f"The journal {path} is a folder; name a file, such as {path / 'evaluation.journal'}.")
        if path is not None and path.exists():
            stored = read_as(path, cls)
            if stored.evaluation != evaluation:
                raise InputError(
                    f"{path} belongs to another evaluation (another model, other examples, attacks, precision, "
                    "batch size or seed). Delete it to start again, or name another file."
                )
            return stored
        correct = list(correct)
        states = {name: AttackState.start(name, attack, correct, batch_size) for name, attack in attacks.items()}
        return cls(evaluation, states)

    def save(self, path: Path | None) -> None:
        if path is not None:
            write_json(path, asdict(self))
