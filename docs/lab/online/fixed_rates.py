"""Whole trainings of the tuning networks over a grid of rates; every loss of every step is kept.

OMP_NUM_THREADS=1 python docs/lab/online/fixed_rates.py OUT NETWORK FROM TO DRAWS   # rates start·2^(k/2), k = FROM … TO
"""

import math
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "certified"))
from networks import TUNING


def main(out: str, name: str, first: str, last: str, draws: str) -> None:
    torch.set_num_threads(1)
    network, folder = TUNING[name], Path(out) / name
    folder.mkdir(parents=True, exist_ok=True)
    for draw in range(int(draws)):
        for k in range(int(first), int(last) + 1):
            path = folder / f"{k}_{draw}.npy"
            if path.exists():
                continue
            began = time.perf_counter()
            rate = network.start * math.sqrt(2) ** k
            losses = np.array(network.whole(rate, draw), dtype=np.float32)
            np.save(path, losses)
            tail = losses[-max(len(losses) // 10, 1) :].mean()
            print(
                f"{name} {rate:.4g} draw {draw}: {losses[0]:.3f} -> {tail:.4f} in {time.perf_counter() - began:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
