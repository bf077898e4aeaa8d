"""How much faster is a training step if freed memory is kept? CPU time, page faults and peak memory, with and without.

    OMP_NUM_THREADS=1 python benchmarks/memory.py

Each measurement is a separate process, with and without in turn. CPU time, because other work distorts it less.
"""

import json
import resource
import subprocess
import sys
import time

import torch

from excite import models
from excite.objectives import standard_loss
from excite.training import descend, keep_freed_memory

CASES = {("resnet8", 1000): 10, ("resnet20", 128): 6}  # steps
ROUNDS = 2


def steps(model_name: str, batch: int, count: int, *, keep: bool) -> dict[str, float]:
    torch.set_num_threads(1)
    if keep:
        keep_freed_memory()
    torch.manual_seed(0)
    model = models.create(model_name).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.rand(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,))
    times, faults, held = [], [], []
    for _ in range(count):
        began, faulted = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        (loss,) = descend(model, [(x, y)], standard_loss, optimizer)
        times.append(time.process_time() - began)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faulted)
        held.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    middle = held[count // 2 - 1]
    return {"seconds": min(times), "faults": faults[-1], "middle": middle, "end": held[-1], "loss": float(loss)}


def main() -> None:
    for (model, batch), count in CASES.items():
        found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for keep, rounds in found.items():
                command = [sys.executable, __file__, model, str(batch), str(count), str(int(keep))]
                rounds.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        plain = min(each["seconds"] for each in found[False])
        print(f"{model}, batch {batch}")
        for keep, rounds in found.items():
            best = min(rounds, key=lambda each: each["seconds"])
            print(
                f"  freed memory {'kept' if keep else 'given back':10} {best['seconds']:7.3f} s a step "
                f"{plain / best['seconds']:5.2f}×   {best['faults']:8.0f} page faults a step   "
                f"at most {best['end']:6.0f} MB, of which {best['end'] - best['middle']:3.0f} in the second half   "
                f"loss {best['loss']!r}",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(steps(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), keep=sys.argv[4] == "1")))
    else:
        main()
