"""What every estimator makes of every baseline, and of short runs: estimates.csv, one row each.

    OMP_NUM_THREADS=1 python docs/study/estimates.py [NETWORK …]

Traces come from grid.py; the short runs of the edge are added to losses.csv where the grid has not left them.
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from grid import BASELINES, HERE, NETWORKS, append, rows, short_runs, trace_path

from excite.lipschitz import estimate_lipschitz, find_edge
from excite.trace import Trace

ESTIMATES = HERE / "estimates.csv"
OTHER_SEEDS = (1, 2)  # other initial weights and data order: how far apart are the edges they find?
COLUMNS = [
    "network",
    "seed",
    "baseline",
    "method",
    "L",
    "low",
    "high",
    "identified",
    "one_over_L",
    "two_over_L",
    "runs",
]

Found = tuple[float, tuple[float, float], bool]  # L, its interval, whether it is identified


def from_trace(trace: Trace) -> Iterator[tuple[str, Found]]:
    for method in ("epochs", "local", "curvature"):
        if method == "curvature" and not len(trace.curvatures):
            continue
        estimate = estimate_lipschitz(trace, method)
        yield method, (estimate.constant, estimate.interval, estimate.identified)
    low, median, high = map(float, np.quantile(trace.slopes, [0.25, 0.5, 0.75]))
    yield "local median", (median, (low, high), True)
    largest = float(trace.slopes.max())
    yield "local largest", (largest, (largest, largest), True)


def keep(name: str, seed: int, baseline: float, method: str, estimate: Found, *, runs: int | None = None) -> None:
    constant, (low, high), identified = estimate
    row: dict[str, object] = {"network": name, "seed": seed, "baseline": f"{baseline:g}", "method": method}
    row |= {"L": f"{constant:.4g}", "low": f"{low:.4g}", "high": f"{high:.4g}", "identified": identified}
    row |= {"one_over_L": f"{1 / constant:.4g}", "two_over_L": f"{2 / constant:.4g}", "runs": runs}
    append(ESTIMATES, COLUMNS, row)


def keep_edge(name: str, seed: int, start: float) -> None:
    steps = NETWORKS[name].edge_steps
    edge = find_edge(short_runs(name, seed, steps), steps=steps, start=start)
    print(name, seed, start, edge, flush=True)
    keep(name, seed, start, "edge", (edge.constant, edge.interval, edge.identified), runs=len(edge.details["runs"]))


def main(names: list[str], seed: int = 0) -> None:
    torch.set_num_threads(1)
    known = {tuple(row[key] for key in COLUMNS[:4]) for row in rows(ESTIMATES)}
    wanted = [(name, baseline) for name in names or NETWORKS for baseline in reversed(BASELINES)]
    for name, baseline in wanted:
        path = trace_path(name, seed, baseline)
        if path.exists() and (name, str(seed), f"{baseline:g}", "epochs") not in known:
            for method, found in from_trace(Trace.load(path)):
                keep(name, seed, baseline, method, found)
    for name, baseline in wanted:
        if (name, str(seed), f"{baseline:g}", "edge") not in known:
            keep_edge(name, seed, baseline)
    for name in names or NETWORKS:
        for other in OTHER_SEEDS:
            if (name, str(other), f"{BASELINES[-1]:g}", "edge") not in known:
                keep_edge(name, other, BASELINES[-1])


if __name__ == "__main__":
    main(sys.argv[1:])
