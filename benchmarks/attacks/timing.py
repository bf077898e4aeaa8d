"""CPU seconds of cases that take turns, and how they are printed."""

import os
import time
from collections.abc import Callable


def in_turn(cases: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """The fastest round of each case, in CPU seconds; they take turns, so that a busy machine is busy for all."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: min(values) for name, values in seconds.items()}


def print_ratios(title: str, seconds: dict[str, float]) -> None:
    reference = next(iter(seconds.values()))
    print(f"\n{title}")
    for name, value in seconds.items():
        print(f"  {name:40} {value:8.2f} s  {reference / value:5.2f}×", flush=True)


def cpu_seconds() -> float:
    """Of this process and of those it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
