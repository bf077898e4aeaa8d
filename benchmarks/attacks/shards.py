"""How much faster are two processes than one, and than one process with two threads?"""

import time

import numpy as np
import torch

from benchmarks.attacks.direct import EPS, STEP
from benchmarks.attacks.networks import test_images, trained
from benchmarks.attacks.timing import cpu_seconds
from excite import attacks
from excite.evaluation import Evaluation, evaluate


def main(only: str) -> None:
    """Wall time, and CPU time including workers; on a busy machine only the CPU time is meaningful."""
    model = trained("resnet20", epochs=2)
    effort = {"iterations": 10, "queries": 500}
    for title, count, batch, attack in (
        ("PGD-20", 4000, 32, attacks.create("pgd", eps=EPS, step=STEP)),
        ("a tenth of AutoAttack standard", 64, 4, attacks.create("autoattack", eps=EPS, **effort)),
    ):
        if only not in title:
            continue
        x, y = test_images(count)
        print(f"\nResNet-20, {title} on {count} images, batches of {batch}")
        results: list[Evaluation] = []
        walls: list[float] = []
        for name, threads, workers in (
            ("one process, one thread", 1, 1),
            ("one process, two threads", 2, 1),
            ("two processes, one thread each", 1, 2),
        ):
            torch.set_num_threads(threads)
            wall, cpu = time.perf_counter(), cpu_seconds()
            results.append(evaluate(model, x, y, {"a": attack}, batch_size=batch, checks=False, workers=workers))
            walls.append(time.perf_counter() - wall)
            cpu = cpu_seconds() - cpu
            print(f"  {name:32} wall {walls[-1]:8.2f} s   {walls[0] / walls[-1]:5.2f}×   CPU {cpu:8.2f} s", flush=True)
        torch.set_num_threads(1)
        same = np.array_equal(results[0].outcomes("a"), results[-1].outcomes("a"))
        print(f"  two processes against one with two threads: {walls[1] / walls[2]:.2f}×")
        outcomes = "the same outcomes" if same else "DIFFERENT OUTCOMES"
        print(f"  {outcomes} with one and two processes: {results[0].worst.correct} robust", flush=True)
