"""Run every estimator on every baseline: estimates.csv, one row each.

    OMP_NUM_THREADS=1 python docs/study/estimates.py [NETWORK …]

Traces come from grid.py. The rows of `edge` come from an earlier `edge`, a bisection.
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from grid import BASELINES, HERE, NETWORKS, append, rows, trace_path

from excite.lipschitz import estimate_lipschitz
from excite.trace import Trace

ESTIMATES = HERE / "estimates.csv"
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


def main(names: list[str], seed: int = 0) -> None:
    torch.set_num_threads(1)
    known = {tuple(row[key] for key in COLUMNS[:4]) for row in rows(ESTIMATES)}
    wanted = [(name, baseline) for name in names or NETWORKS for baseline in reversed(BASELINES)]
    for name, baseline in wanted:
        path = trace_path(name, seed, baseline)
        if path.exists() and (name, str(seed), f"{baseline:g}", "epochs") not in known:
            for method, found in from_trace(Trace.load(path)):
                keep(name, seed, baseline, method, found)


if __name__ == "__main__":
    main(sys.argv[1:])
