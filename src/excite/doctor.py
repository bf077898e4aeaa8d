"""What this machine is, how fast each precision is on it, and which one to choose."""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import torch
from torch import nn

from excite import models
from excite.attacks.fast_model import fast_inference
from excite.attacks.projected_gradient import cross_entropy, loss_and_gradient
from excite.errors import InputError
from excite.objectives import standard_loss
from excite.precision import Precision
from excite.quantities import OnProgress
from excite.randomness import device_names, undisturbed
from excite.runs.records import Circumstances, circumstances
from excite.training import descend

NETWORK, IMAGES = "resnet8", 128
ROUNDS = 30
GAIN = 1.1  # times as fast; a smaller gain is not recommended


@dataclasses.dataclass(frozen=True)
class Speed:
    """Milliseconds for a batch of a small network; None, and the reason, if it does not run."""

    name: str
    training_step: float | None = None
    attack_gradient: float | None = None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What a machine is, and how fast a small network is on it; `advice` says what to choose."""

    circumstances: Circumstances  # machine, device that was measured, threads and versions
    bfloat16: bool  # whether the processor has instructions for it
    devices: list[str]
    speeds: list[Speed]  # float32 first

    @property
    def advice(self) -> list[str]:
        base, *others = self.speeds
        advice = [_compared(each, base) for each in others]
        on_cpu = self.circumstances.device == "cpu"
        if on_cpu and not self.bfloat16:
            advice.append("This processor has no bfloat16 instructions: bf16 can be many times slower than float32.")
        if on_cpu and self.circumstances.threads > 1:
            advice.append("If several trainings share this machine, set OMP_NUM_THREADS=1.")
        return advice

    def to_json(self) -> dict[str, Any]:
        where: dict[str, Any] = msgspec.to_builtins(self.circumstances)
        return dataclasses.asdict(self) | {"circumstances": where, "advice": self.advice}

    def __str__(self) -> str:
        instructions = "has" if self.bfloat16 else "has no"
        rows = [("", "training step", "attack gradient")]
        rows += [(each.name, _in_words(each.training_step), _in_words(each.attack_gradient)) for each in self.speeds]
        lines = [
            str(self.circumstances),
            f"The processor {instructions} bfloat16 instructions. Devices: {', '.join(self.devices)}.",
            f"\n{NETWORK} with {IMAGES} images on {self.circumstances.device}:",
            *(f"  {name:14} {step:>15} {gradient:>17}" for name, step, gradient in rows),
        ]
        return "\n".join([*lines, "", *self.advice])


def diagnose(
    device: torch.device, *, compile: bool = True, rounds: int = ROUNDS, on_progress: OnProgress | None = None
) -> Diagnosis:
    """Time a training step and an attack's gradient with each precision, and with torch.compile.

    The cases take turns, so that other work on the machine affects all of them, and the fastest round counts.
    """
    names = ["float32", "bf16", *(["tf32"] if device.type == "cuda" else []), *(["torch.compile"] if compile else [])]
    tasks, best, problems = dict[str, list[Callable[[], object]]](), dict[str, list[float]](), dict[str, str]()
    with undisturbed(nn.Identity(), device):
        for number in range(rounds + 1):
            for name in names:
                try:
                    if name not in tasks:  # the first round prepares, and is not counted
                        tasks[name], best[name] = _tasks(name, device), [math.inf, math.inf]
                        _milliseconds(tasks[name], device)
                    elif name not in problems:
                        best[name] = list(map(min, best[name], _milliseconds(tasks[name], device)))
                except (InputError, RuntimeError) as error:  # no bfloat16, or no compiler
                    tasks[name], problems[name] = [], str(error).partition("\n")[0]
            if on_progress is not None:
                on_progress(number + 1, rounds + 1)
    return Diagnosis(
        circumstances=circumstances(device),
        bfloat16=any("bf16" in name and value is True for name, value in torch.cpu.get_capabilities().items()),
        devices=device_names(),
        speeds=[
            Speed(name, problem=problems[name]) if name in problems else Speed(name, best[name][0], best[name][1])
            for name in names
        ],
    )


def _tasks(name: str, device: torch.device) -> list[Callable[[], object]]:
    """A training step and an attack's gradient."""
    compiled = name == "torch.compile"
    precision = cast(Precision, "float32" if compiled else name)
    torch.manual_seed(0)
    model = models.create(NETWORK).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.rand(IMAGES, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (IMAGES,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    fast = fast_inference(copy.deepcopy(model), precision=precision)
    if compiled:
        fast.compile()
    trained: Any = torch.compile(model) if compiled else model
    return [
        lambda: list(descend(trained, [(x, y)], standard_loss, optimizer, precision=precision)),
        lambda: loss_and_gradient(fast, x, y, cross_entropy, last=False),
    ]


def _milliseconds(tasks: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    taken = []
    for task in tasks:
        started = time.perf_counter()
        task()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        taken.append(1000 * (time.perf_counter() - started))
    return taken


def _compared(speed: Speed, base: Speed) -> str:
    times = [(base.training_step, speed.training_step), (base.attack_gradient, speed.attack_gradient)]
    step, gradient = (slow / fast if slow and fast else 0.0 for slow, fast in times)
    if speed.problem:
        return f"{speed.name} does not run here: {speed.problem}"
    uses = [use for use, gain in (("train", step), ("attack", gradient)) if gain >= GAIN]
    choice = f"is worth using to {' and '.join(uses)} here" if uses else "does not help here"
    return f"{speed.name} {choice}: training {step:.2f}× and attacks {gradient:.2f}× as fast as with float32."


def _in_words(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"
