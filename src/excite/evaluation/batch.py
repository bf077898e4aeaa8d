"""Attack one batch of images, here or in a worker, and let the model itself say which of them it gets wrong."""

import contextlib
import functools
import itertools
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from excite.attacks.fast_model import PROBES, FastModel, fast_inference
from excite.attacks.protocol import Attack, AttackWarning, distance, right_answers
from excite.errors import InputError
from excite.evaluation.result import Cost, Flag
from excite.evaluation.state import Batch, BatchResult
from excite.execution import Shared
from excite.memory import keep_freed_memory
from excite.randomness import seeded

ROUNDING = 1e-6


class Attacker:
    """Attacks batches of examples: the same batch gives the same result in every process.

    Attacks see a faster copy of the model, but every verdict is the answer of the model itself to the attacked image.
    Radii are tried from the largest down. An example that falls is attacked at the next smaller radius, starting from
    the image that fooled the model, or further down if that image lies in a smaller ball. An example that withstands
    is not attacked at smaller radii.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, attacks: Mapping[str, Attack], *, seed: int, fast: bool
    ) -> None:
        keep_freed_memory()
        self.model, self.x, self.y, self.attacks, self.seed, self.fast = model, x, y, attacks, seed, fast
        self.fast_model = fast_inference(model) if fast else FastModel(model)
        self.fast_model.compare(self.examples(torch.arange(len(x))[:PROBES])[0])

    def attack_batch(self, name: str, stage_number: int, batch: Batch, fell_before: Sequence[int]) -> BatchResult:
        """Run one stage of the attack `name`; `fell_before` says at which radius each example has fallen so far."""
        cost_before, flags = self.cost_so_far(), list[Flag]()
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
            with _warnings_as_flags(label, flags):
                if from_start:
                    x_adv = stage.go_on(self.fast_model, x[here], y[here], generator, best[here])
                else:
                    x_adv = stage(self.fast_model, x[here], y[here], generator)
            _check_inside(x_adv, x[here], stage, label)
            with torch.no_grad():
                wrong = ~right_answers(self.model(x_adv), y[here]).cpu()
            best[here] = x_adv
            has_start[active[wrong]] = True
            reached = torch.full_like(active, rung)
            if rung > 1 and stage.norm is not None:
                radii = torch.tensor([smaller.eps for smaller in rungs[: rung - 1]], dtype=torch.float64)
                reached = 1 + torch.searchsorted(radii, distance(x_adv, x[here], norm=stage.norm))
            fell_at[active[wrong]] = reached[wrong]
            n_checked += len(active)
        return BatchResult(fell_at.tolist(), self.cost_so_far() - cost_before + Cost(forwards=n_checked), flags)

    def examples(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        device = device_of(self.model, self.x)
        return self.x[numbers.to(self.x.device)].to(device), self.y[numbers.to(self.y.device)].to(device)

    def cost_so_far(self) -> Cost:
        return Cost(time.perf_counter(), self.fast_model.forwards, self.fast_model.backwards)


def attack_in_worker(shared: Shared, device: str, *arguments: Any) -> BatchResult:
    """`Attacker.attack_batch` in a worker process; `shared` holds what its `Attacker` is made of."""
    return _worker_attacker(shared, device).attack_batch(*arguments)


@functools.lru_cache(maxsize=1)
def _worker_attacker(shared: Shared, device: str) -> Attacker:
    model, x, y, attacks, seed, fast = shared.load()
    return Attacker(model.to(device), x, y, attacks, seed=seed, fast=fast)


def device_of(model: nn.Module, x: Tensor) -> torch.device:
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), x.device)


def _check_inside(x_adv: Tensor, x: Tensor, attack: Attack, label: str) -> None:
    """Refuse results of an attack that leaves [0, 1], or the ball that it announces."""
    if x_adv.shape != x.shape or not bool(((x_adv >= 0) & (x_adv <= 1)).all()):
        raise InputError(f"The attack {label} returned images outside [0, 1] or of another shape; clamp them.")
    if attack.eps is None or attack.norm is None:
        return
    furthest = float(distance(x_adv, x, norm=attack.norm).max())
    if furthest > attack.eps + ROUNDING * max(1.0, attack.eps):
        raise InputError(f"The attack {label} moved an image by {furthest:g}, more than its eps={attack.eps:g}.")


@contextlib.contextmanager
def _warnings_as_flags(label: str, flags: list[Flag]) -> Iterator[None]:
    """Turn warnings of an attack into flags of the evaluation; other warnings pass through."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if issubclass(warning.category, AttackWarning):
            flags.append(Flag(label, str(warning.message)))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
