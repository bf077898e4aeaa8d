"""One batch of images judged under one stage of an attack: the piece of an evaluation that is never split."""

import contextlib
import itertools
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excite.attacks.fast_model import PROBES, FastModel, fast_inference
from excite.attacks.protocol import Attack, AttackWarning, distance, right_answers
from excite.errors import InputError
from excite.evaluation.result import Cost, Flag
from excite.memory import keep_freed_memory
from excite.randomness import seeded

ROUNDING = 1e-6


@dataclass(frozen=True, order=True)
class Task:
    """Which examples to attack with what; in the order in which one process alone would do them."""

    attack_number: int
    stage: int
    number: int  # of the batch
    attack: str
    examples: tuple[int, ...]
    fell_at: tuple[int, ...]  # so far, see `Curve`

    @property
    def address(self) -> tuple[int, int, int]:
        return self.attack_number, self.stage, self.number


@dataclass(frozen=True)
class Ruling:
    fell_at: tuple[int, ...]
    cost: Cost
    flags: tuple[Flag, ...]


class Judge:
    """A model in eval mode, its examples and attacks: whoever has them gives the same verdicts.

    Every verdict comes from the model itself, on the attacked image; attacks see a faster copy of the same function.
    Several radii are tried from the largest down: who falls goes on to the next smaller one, from what was found (or
    further down, if that lies nearer to the image); who withstands is not asked at smaller ones.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, attacks: Mapping[str, Attack], *, seed: int, fast: bool
    ) -> None:
        keep_freed_memory()
        self.model, self.x, self.y, self.attacks, self.seed, self.fast = model, x, y, attacks, seed, fast
        self.attacked = fast_inference(model) if fast else FastModel(model)
        self.attacked.compare(self.examples(torch.arange(len(x))[:PROBES])[0])

    def __call__(self, task: Task) -> Ruling:
        began, flags = self.spent(), list[Flag]()
        x, y = self.examples(torch.tensor(task.examples))
        rungs = self.attacks[task.attack].rungs
        fell_at, found, judged = torch.tensor(task.fell_at), x.clone(), 0
        has_start = torch.zeros(len(x), dtype=torch.bool)  # a point found in a larger ball
        for rung, goes_on in itertools.product(range(len(rungs), 0, -1), (False, True)):
            active = ((fell_at == rung + 1) & (has_start == goes_on)).nonzero().squeeze(1)
            if len(active) == 0:
                continue
            stage_name, stage = rungs[rung - 1].stages[task.stage]
            label = f"{task.attack}/{stage_name}" if stage_name else task.attack
            generator = seeded(self.seed, label, task.number, *([rung, int(goes_on)] if rung < len(rungs) else []))
            here = active.to(x.device)
            with _warnings_kept(label, flags):
                if goes_on:
                    moved = stage.go_on(self.attacked, x[here], y[here], generator, found[here])
                else:
                    moved = stage(self.attacked, x[here], y[here], generator)
            _check_inside(moved, x[here], stage, label)
            with torch.no_grad():
                wrong = ~right_answers(self.model(moved), y[here]).cpu()
            found[here] = moved
            has_start[active[wrong]] = True
            reached = torch.full_like(active, rung)
            if rung > 1 and stage.norm is not None:
                radii = torch.tensor([smaller.eps for smaller in rungs[: rung - 1]], dtype=torch.float64)
                reached = 1 + torch.searchsorted(radii, distance(moved, x[here], norm=stage.norm))
            fell_at[active[wrong]] = reached[wrong]
            judged += len(active)
        return Ruling(tuple(fell_at.tolist()), self.spent() - began + Cost(forwards=judged), tuple(flags))

    def examples(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        device = device_of(self.model, self.x)
        return self.x[numbers.to(self.x.device)].to(device), self.y[numbers.to(self.y.device)].to(device)

    def spent(self) -> Cost:
        return Cost(time.perf_counter(), self.attacked.forwards, self.attacked.backwards)


def device_of(model: nn.Module, x: Tensor) -> torch.device:
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), x.device)


def _check_inside(x_adv: Tensor, x: Tensor, attack: Attack, label: str) -> None:
    """An attack that leaves the box, or the ball it announces, is broken: no verdict of it counts."""
    if x_adv.shape != x.shape or not bool(((x_adv >= 0) & (x_adv <= 1)).all()):
        raise InputError(f"The attack {label} returned images outside [0, 1] or of another shape; clamp them.")
    if attack.eps is None or attack.norm is None:
        return
    furthest = float(distance(x_adv, x, norm=attack.norm).max())
    if furthest > attack.eps + ROUNDING * max(1.0, attack.eps):
        raise InputError(f"The attack {label} went {furthest:g} away from the image, further than eps={attack.eps:g}.")


@contextlib.contextmanager
def _warnings_kept(label: str, flags: list[Flag]) -> Iterator[None]:
    """What an attack warns of becomes a flag of the evaluation; other warnings pass through."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if issubclass(warning.category, AttackWarning):
            flags.append(Flag(label, str(warning.message)))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
