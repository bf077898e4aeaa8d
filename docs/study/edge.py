"""How good is `edge`: whole trainings for the truth (whole.csv), and independent estimates beside it (edge.csv).

    OMP_NUM_THREADS=1 python docs/study/edge.py CASE whole DRAWS RATE…     # e.g. fashion whole 3 0.3 0.42 0.6
    OMP_NUM_THREADS=1 python docs/study/edge.py CASE estimate SEED…        # e.g. fashion estimate 0 1 2
    python docs/study/edge.py verdicts                                     # false alarms and misses of short runs

A row that is there is not computed again. A whole training's first steps are judged as a short run beside its end, so
that false alarms and misses can be counted.
"""

import math
import statistics
import sys
import time
from itertools import islice

import torch
from grid import HERE, LOSSES, NETWORKS, RUNS, append, rows

from excite.lipschitz import find_edge
from excite.lipschitz.brief_run import BriefRun, ended_well
from excite.runs import load
from excite.runs.assemble import Parts, assemble

WHOLE, EDGES = HERE / "whole.csv", HERE / "edge.csv"
WHOLE_COLUMNS = [
    "case",
    "draw",
    "rate",
    "steps",
    "initial",
    "after_100",
    "after_150",
    "after_200",
    "final",
    "cpu_seconds",
]
EDGE_COLUMNS = ["case", "seed", "L", "low", "high", "careful_rate", "runs", "run_steps", "spent", "share", "stopped"]
LENET = ("training.epochs=20",)
CASES: dict[str, tuple[tuple[str, ...], int, float]] = {  # overrides of mnist-sample, budget in steps, paper's length
    "mnist-sample": (LENET, 1580, 1580),
    "mnist-sample-momentum-0.5": ((*LENET, "training.momentum=0.5"), 1580, 1580),
    "mnist-sample-momentum-0.9": ((*LENET, "training.momentum=0.9"), 1580, 1580),
    "fashion": ((*LENET, "data.name=fashion-mnist", "data.train_examples=5000", "data.test_examples=100"), 1580, 9380),
    "densenet40": (
        (
            *("data.name=cifar10", "data.train_examples=1000", "data.test_examples=100", "data.augment=crop-flip"),
            *("model={name='densenet40'}", "training.epochs=6", "training.batch_size=32", "training.momentum=0.9"),
        ),
        480,
        300 * 32,
    ),
}


def parts_of(case: str, seed: int = 0) -> Parts:
    return assemble(load("mnist-sample", overrides=[*CASES[case][0], f"seed={seed}"]), device="cpu")


def train(case: str, parts: Parts, draw: int, rate: float) -> None:
    started, losses = time.process_time(), []
    for loss in islice(parts.losses_at(rate, draw), parts.whole_training):
        losses.append(loss)
        if not math.isfinite(loss):
            break

    def mean(end: int, length: int) -> str:
        recent = losses[max(end - length, 0) : end]
        return f"{math.fsum(recent) / len(recent):.4g}" if recent else "inf"

    row: dict[str, object] = {"case": case, "draw": draw, "rate": f"{rate:g}", "steps": len(losses)}
    row |= {"initial": f"{losses[0]:.4g}", "final": mean(len(losses), max(len(losses) // 10, 1))}
    row |= {f"after_{n}": mean(n, n // 4) for n in (100, 150, 200)}
    append(WHOLE, WHOLE_COLUMNS, row | {"cpu_seconds": f"{time.process_time() - started:.1f}"})
    print(row, flush=True)


def estimate(case: str, seed: int) -> None:
    parts = parts_of(case, seed)
    _, budget, paper = CASES[case]
    found = find_edge(parts.losses_at, budget=budget, start=0.1)
    details = found.details
    print(case, seed, found, flush=True)
    print([(round(r, 3), w) for r, w in zip(details["rates"], details["ended_well"], strict=True)], flush=True)
    row: dict[str, object] = {"case": case, "seed": seed, "L": f"{found.constant:.4g}"}
    row |= {"low": f"{found.interval[0]:.4g}", "high": f"{found.interval[1]:.4g}"}
    row |= {"careful_rate": f"{details['careful_rate']:.4g}", "runs": len(details["rates"])}
    row |= {"run_steps": details["steps"], "spent": details["spent"], "share": f"{details['spent'] / paper:.3f}"}
    append(EDGES, EDGE_COLUMNS, row | {"stopped": details["stopped"]})


def verdicts() -> None:
    """Whole trainings against their own first steps: of the study's six networks, and of the cases above."""
    for name in NETWORKS:
        ends = {
            row["rate"]: float(row["initial_loss"]) - float(row["final_loss"])
            for row in rows(RUNS)
            if row["network"] == name
        }
        starts = {
            row["rate"]: [float(loss) for loss in row["losses"].split()]
            for row in reversed(rows(LOSSES))
            if row["network"] == name and row["seed"] == "0" and row["rate"] in ends
        }
        for steps in (80, 140, 195):
            runs = [BriefRun(float(rate), tuple(starts[rate][:steps]), steps) for rate in ends]
            _count(f"{name}, {steps} steps", runs, list(ends.values()), max(ends.values()))
    for case in CASES:
        found = [row for row in rows(WHOLE) if row["case"] == case]
        ways = [float(row["initial"]) - float(row["final"]) for row in found]
        by_rate = {
            row["rate"]: [w for w, r in zip(ways, found, strict=True) if r["rate"] == row["rate"]] for row in found
        }
        best = max((statistics.median(way) for way in by_rate.values()), default=0.0)
        for steps in (100, 150, 200):
            runs = [BriefRun(float(r["rate"]), (float(r["initial"]), float(r[f"after_{steps}"])), 2) for r in found]
            _count(f"{case}, {steps} steps", runs, ways, best)


def _count(title: str, runs: list[BriefRun], ways: list[float], best: float) -> None:
    if not runs:
        return
    reference = max(zip(ways, runs, strict=True), key=lambda pair: pair[0])[1].rate
    well = [way >= 0.75 * best or (run.rate < reference and way > 0) for way, run in zip(ways, runs, strict=True)]
    alarms = sum(truth and not verdict for truth, verdict in zip(well, ended_well(runs), strict=True))
    misses = sum(verdict and not truth for truth, verdict in zip(well, ended_well(runs), strict=True))
    print(f"{title}: {sum(well)} of {len(runs)} end well; {alarms} false alarms, {misses} misses")


def main(case: str, what: str = "", *numbers: str) -> None:
    torch.set_num_threads(1)
    if case == "verdicts":
        return verdicts()
    if what == "estimate":
        done = {row["seed"] for row in rows(EDGES) if row["case"] == case}
        for seed in numbers:
            if seed not in done:
                estimate(case, int(seed))
        return None
    parts, (draws, *rates) = parts_of(case), numbers
    done = {(row["draw"], row["rate"]) for row in rows(WHOLE) if row["case"] == case}
    for draw in range(int(draws)):
        for rate in map(float, rates):
            if (str(draw), f"{rate:g}") not in done:
                train(case, parts, draw, rate)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
