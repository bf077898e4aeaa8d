"""Judge the certified L on networks that it was not tuned on; every number goes to judged.csv.

    OMP_NUM_THREADS=1 python docs/lab/certified/judge.py NETWORK…   # adds the rows that are missing
    python docs/lab/certified/judge.py report                       # the tables of README.md

For each network: three independent estimates; ten whole trainings at 1/L and ten at 2/L of the first estimate that is
identified; ten with OnlineRate; and three at larger rates, a factor 1.4 apart, until all fail at two rates in a row.
"""

import csv
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import torch
from networks import JUDGING, Network

from excite.errors import DivergedError
from excite.lipschitz import Edge, LipschitzEstimate, find_edge
from excite.lipschitz.dose_response import DoseResponse

sys.path.append(str(Path(__file__).parents[1] / "online"))
from measure import train as train_online

RESULTS = Path(__file__).with_name("judged.csv")
COLUMNS = ["network", "what", "draw", "rate", "initial", "final", "identified", "L", "spent", "runs", "converging"]
AS_FAR = 0.9
ESTIMATES, TRAININGS, BEYOND, FACTOR = 3, 10, 3, 1.4


def rows(name: str, what: str) -> list[dict[str, str]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if (row["network"], row["what"]) == (name, what)]


def add(**row: object) -> None:
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({key: f"{value:.5g}" if isinstance(value, float) else value for key, value in row.items()})
    print(row, flush=True)


def estimate(network: Network, seed: int) -> LipschitzEstimate:
    """With the budget and the limit of `excite run`."""
    return find_edge(
        lambda rate, draw, steps: replace(network, steps=steps).losses(
            rate, 1000 * (seed + 1) + draw, schedule=network.schedule
        ),
        budget=Edge().usual_steps(network.steps),
        limit=Edge().most_steps(network.steps),
        whole=network.steps,
        start=network.start,
        say=print,
    )


def train(name: str, what: str, draw: int, rate: float) -> None:
    if any(int(row["draw"]) == draw for row in rows(name, what)):
        return
    network = JUDGING[name]
    if what == "online":
        try:
            online, losses = train_online(network, draw, multiple=1.0)
            rate, finished = online.rate, math.isfinite(losses[-1])
        except DivergedError:
            rate, losses, finished = math.nan, [math.nan], False
    else:
        losses = network.whole(rate, draw)
        finished = len(losses) == network.steps
    last = losses[-max(network.steps // 10, 1) :]
    final = math.fsum(last) / len(last) if finished else math.inf
    add(network=name, what=what, draw=draw, rate=rate, initial=losses[0], final=final)


def judge(name: str) -> None:
    network = JUDGING[name]
    for seed in range(ESTIMATES):
        if not any(int(row["draw"]) == seed for row in rows(name, "estimate")):
            found = estimate(network, seed)
            print(found, found.details, flush=True)
            add(
                network=name,
                what="estimate",
                draw=seed,
                rate=found.learning_rate(2),
                identified=found.identified,
                L=found.constant,
                spent=found.details["spent"],
                runs=len(found.details["rates"]),
                converging=found.convergence[1] if found.convergence else "",
            )
    identified = [float(row["rate"]) for row in rows(name, "estimate") if row["identified"] == "True"]
    if not identified:
        return  # nothing trains at such an L
    largest = identified[0]
    for draw in range(TRAININGS):
        train(name, "2/L", draw, largest)
        train(name, "1/L", draw, largest / 2)
    failed = 0
    for power in range(1, 12):
        what = f"{FACTOR**power:.3g} · 2/L"
        for draw in range(BEYOND):
            train(name, what, 100 * power + draw, largest * FACTOR**power)
        ends = outcomes(name)
        failed = failed + 1 if not any(ends[what]) else 0
        if failed == 2:
            break
    for draw in range(TRAININGS):
        train(name, "online", draw, 0.0)


def outcomes(name: str) -> dict[str, list[bool]]:
    """Whether each training converged, by what it was trained for."""
    kinds = ["1/L", "2/L", "online", *(f"{FACTOR**power:.3g} · 2/L" for power in range(1, 12))]
    trained = {kind: rows(name, kind) for kind in kinds if rows(name, kind)}
    initial = statistics.fmean(
        value for kind in trained.values() for row in kind if math.isfinite(value := float(row["initial"]))
    )
    ways = {kind: [initial - float(row["final"]) for row in own] for kind, own in trained.items()}
    best = max(statistics.median(ways[kind]) for kind in ways if kind != "online")
    return {kind: [way >= AS_FAR * best for way in own] for kind, own in ways.items()}


def true_edge(name: str) -> float:
    """η*: the 95% point of a logistic curve through all whole trainings."""
    ends = outcomes(name)
    pairs = [
        (float(row["rate"]), well)
        for kind, own in ends.items()
        if kind != "online"
        for row, well in zip(rows(name, kind), own, strict=True)
    ]
    first = float(rows(name, "2/L")[0]["rate"])
    curve = DoseResponse(first, [rate for rate, _ in pairs], [well for _, well in pairs])
    return curve.rate_for(0.95)


def report() -> None:
    print("| network | 2/L of three estimates | spread | spent | at 1/L | at 2/L | online | η* | 2/L over η* |")
    print("|---|---|---|---|---|---|---|---|---|")
    total, shares = {"1/L": [0, 0], "2/L": [0, 0], "online": [0, 0]}, []
    for name, network in JUDGING.items():
        found = rows(name, "estimate")
        if found and len(rows(name, "1/L")) < TRAININGS:
            print(f"| `{name}` | {', '.join(row['rate'] + '*' * (row['identified'] != 'True') for row in found)} |")
            continue
        if not found:
            continue
        rates = [float(row["rate"]) for row in found]
        ends, edge = outcomes(name), true_edge(name)
        for kind, counts in total.items():
            counts[0] += sum(ends.get(kind, []))
            counts[1] += len(ends.get(kind, []))
        shares += [rate / edge for rate in rates]
        each = ", ".join(
            f"{rate:.3g}{'' if row['identified'] == 'True' else '*'}" for rate, row in zip(rates, found, strict=True)
        )
        spent = statistics.fmean(float(row["spent"]) for row in found) / network.steps
        counted = " | ".join(f"{sum(ends.get(kind, []))} of {len(ends.get(kind, []))}" for kind in total)
        ratios = ", ".join(f"{rate / edge:.2f}" for rate in rates)
        spread = max(rates) / min(rates)
        print(f"| `{name}` | {each} | ×{spread:.2f} | {spent:.0%} | {counted} | {edge:.3g} | {ratios} |")
    if shares:
        counted = ", ".join(f"{good} of {all_} at {kind}" for kind, (good, all_) in total.items())
        print(f"\n{counted} converge; 2/L over η*: mean {statistics.fmean(shares):.2f}, smallest {min(shares):.2f}.")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        report() if argument == "report" else judge(argument)
