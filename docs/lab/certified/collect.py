"""Short runs of a network over a grid of rates and lengths; each goes through the whole schedule.

OMP_NUM_THREADS=1 python docs/lab/certified/collect.py NETWORK CENTER DRAWS STEPS…   # rates CENTER·2^(k/2), k = −9 … 5
"""

import math
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from networks import JUDGED_BEFORE, TUNING

STORED = Path(__file__).with_name("lengths.npz")


def main(name: str, center: str, draws: str, *lengths: str) -> None:
    torch.set_num_threads(1)
    network = {**TUNING, **JUDGED_BEFORE}[name]
    stored = dict(np.load(STORED)) if STORED.exists() else {}
    for steps in map(int, lengths):
        for rate in (float(center) * 2 ** (k / 2) for k in range(-9, 6)):
            for draw in range(int(draws)):
                runs = replace(network, steps=steps).losses(rate, 5000 + draw, schedule=network.schedule)
                losses = []
                for loss in islice(runs, steps):
                    losses.append(loss if loss <= 1e4 else math.inf)
                    if not math.isfinite(losses[-1]):
                        break
                stored[f"{name}/{steps}/{rate:.5g}/{draw}"] = np.array(losses, dtype=np.float16)
        np.savez_compressed(STORED, **stored)
        print(name, steps, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
