"""Does `edge` find the same L with the short runs that 15% of a full-length training pays for? Writes affordable.csv.

    OMP_NUM_THREADS=1 python docs/study/affordable.py

The study's trainings are short: its short runs cost more than 15% of them. The paper's are not: LeNet-5 trains for 10
epochs, a ResNet for 164 (here of 10,000 images). Ten runs in 15% of those are 141 and 195 steps each.
"""

import math

import torch
from grid import HERE, NETWORKS, append, parts_of, rows, short_runs

from excite.lipschitz import find_edge

AFFORDABLE = HERE / "affordable.csv"
COLUMNS = ["network", "seed", "epochs", "steps", "share", "L", "low", "high", "identified", "runs"]
PAPER_EPOCHS = {"lenet": 10, "resnet": 164}
BUDGET, RUNS, START = 0.15, 10, 0.1


def main(seed: int = 0) -> None:
    torch.set_num_threads(1)
    known = {(row["network"], row["seed"]) for row in rows(AFFORDABLE)}
    for name in NETWORKS:
        if (name, str(seed)) in known:
            continue
        epochs = PAPER_EPOCHS[name.split("-")[0]]
        whole = epochs * parts_of(name, seed).steps_per_epoch
        steps = math.ceil(BUDGET * whole / RUNS)
        edge = find_edge(short_runs(name, seed, steps), steps=steps, start=START, max_runs=RUNS)
        taken = len(edge.details["runs"])
        row: dict[str, object] = {"network": name, "seed": seed, "epochs": epochs, "steps": steps}
        row |= {"share": f"{taken * steps / whole:.3f}", "L": f"{edge.constant:.4g}", "low": f"{edge.interval[0]:.4g}"}
        row |= {"high": f"{edge.interval[1]:.4g}", "identified": edge.identified, "runs": taken}
        append(AFFORDABLE, COLUMNS, row)
        print(row, flush=True)


if __name__ == "__main__":
    main()
