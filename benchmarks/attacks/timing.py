"""Measure CPU seconds of several cases in turn, and print their ratios."""

import os
import time
from collections.abc import Callable


def in_turn(cases: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """CPU seconds of the fastest round of each case. Cases take turns, so that other work affects all of them."""
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
    """CPU seconds of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
