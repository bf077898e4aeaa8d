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
class Diagnosis:
    """What a machine is, and how fast a small network is on it; `advice` says what to choose."""

    circumstances: Circumstances  # machine, device that was measured, threads and versions
    bfloat16: bool  # whether the processor has instructions for it
    devices: list[str]
    speeds: dict[str, tuple[float, float]]  # milliseconds of a training step and of an attack's gradient, by precision
    problems: dict[str, str]  # of what does not run

    @property
    def advice(self) -> list[str]:
        advice = [f"{name} does not run here: {problem}" for name, problem in self.problems.items()]
        (step, gradient), *_ = self.speeds.values()
        for name, (its_step, its_gradient) in list(self.speeds.items())[1:]:
            gains = {"train": step / its_step, "attack": gradient / its_gradient}
            uses = " and ".join(use for use, gain in gains.items() if gain >= GAIN)
            choice = f"is worth using to {uses} here" if uses else "does not help here"
            times = f"training {gains['train']:.2f}× and attacks {gains['attack']:.2f}×"
            advice.append(f"{name} {choice}: {times} as fast as with float32.")
        on_cpu = self.circumstances.device == "cpu"
        if on_cpu and not self.bfloat16:
            advice.append("This processor has no bfloat16 instructions: bf16 can be many times slower than float32.")
        if on_cpu and self.circumstances.threads > 1:
            advice.append("If several trainings share this machine, set OMP_NUM_THREADS=1.")
        return advice

    def to_json(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self), "advice": self.advice}

    def __str__(self) -> str:
        instructions = "has" if self.bfloat16 else "has no"
        lines = [
            str(self.circumstances),
            f"The processor {instructions} bfloat16 instructions. Devices: {', '.join(self.devices)}.",
            f"\n{NETWORK} with {IMAGES} images on {self.circumstances.device}:",
            f"  {'':14} {'training step':>15} {'attack gradient':>17}",
            *(f"  {name:14} {step:12.1f} ms {gradient:14.1f} ms" for name, (step, gradient) in self.speeds.items()),
        ]
        return "\n".join([*lines, "", *self.advice])


def diagnose(
    device: torch.device, *, compile: bool = True, rounds: int = ROUNDS, on_progress: OnProgress | None = None
) -> Diagnosis:
    """Time a training step and an attack's gradient with each precision, and with torch.compile.

    The cases take turns, so that other work on the machine affects all of them, and the fastest round counts.
    """
    names = ["float32", "bf16", *(["tf32"] if device.type == "cuda" else []), *(["torch.compile"] if compile else [])]
    tasks, problems = dict[str, list[Callable[[], object]]](), dict[str, str]()
    with undisturbed(nn.Identity(), device):
        for name in names:
            try:
                of_case = _tasks(name, device)
                _milliseconds(of_case, device)  # the first time is slower
                tasks[name] = of_case
            except (InputError, RuntimeError) as error:  # no bfloat16, or no compiler
                problems[name] = str(error).partition("\n")[0]
        speeds = dict.fromkeys(tasks, (math.inf, math.inf))
        for number in range(rounds):
            for name, of_case in tasks.items():
                step, gradient = _milliseconds(of_case, device)
                speeds[name] = min(speeds[name][0], step), min(speeds[name][1], gradient)
            if on_progress is not None:
                on_progress(number + 1, rounds)
    bfloat16 = any("bf16" in name and value is True for name, value in torch.cpu.get_capabilities().items())
    return Diagnosis(circumstances(device), bfloat16, device_names(), speeds, problems)


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
