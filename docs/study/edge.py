"""How good is `edge`: whole trainings for the truth (whole.csv), and independent estimates beside it (edge.csv).

    OMP_NUM_THREADS=1 python docs/study/edge.py CASE whole DRAWS RATE…     # e.g. fashion whole 3 0.3 0.42 0.6
    OMP_NUM_THREADS=1 python docs/study/edge.py CASE estimate SEED…        # e.g. fashion estimate 0 1 2
    OMP_NUM_THREADS=1 python docs/study/edge.py CASE short DRAWS RATE…     # the first steps alone (short.csv)
    python docs/study/edge.py verdicts    # false alarms and misses of short runs
    python docs/study/edge.py results     # estimates beside whole trainings
    python docs/study/edge.py lengths     # what the length of a short run does to threshold and slope
    python docs/study/edge.py peers       # the same of the networks in results/rates
    python docs/study/edge.py simulate    # known curves: coverage and width of the interval

A row that is there is not computed again. A whole training's first steps are judged as a short run beside its end, so
that false alarms and misses can be counted.
"""

import math
import re
import statistics
import sys
import time
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from grid import HERE, LOSSES, NETWORKS, RUNS, append, rows

from excite.lipschitz import find_edge
from excite.lipschitz.brief_run import AS_FAR, BriefRun, ended_well
from excite.lipschitz.dose_response import DoseResponse
from excite.runs import load
from excite.runs.assemble import Parts, assemble

WHOLE, SHORTS, EDGES = HERE / "whole.csv", HERE / "short.csv", HERE / "edge.csv"
PEERS = HERE.parents[1] / "results" / "rates"
SHORT = (50, 100, 150, 200)  # steps after which a whole training is judged as if it ended there
LENGTHS = (100, 120, 160, 200, 260, 320, 420)
WHOLE_COLUMNS = ["case", "draw", "rate", "steps", "initial", *(f"after_{n}" for n in SHORT), "final", "cpu_seconds"]
SHORT_COLUMNS = ["case", "draw", "rate", "steps", "initial", *(f"after_{n}" for n in LENGTHS), "cpu_seconds"]
EDGE_COLUMNS = [
    "case",
    "seed",
    "L",
    "low",
    "high",
    "careful_rate",
    "runs",
    "run_steps",
    "spent",
    "share",
    "stopped",
    "identified",
]
LENET = ("training.epochs=20",)
FASHION = (*LENET, "data.name=fashion-mnist", "data.train_examples=5000", "data.test_examples=100")
CIFAR = ("data.name=cifar10", "data.test_examples=100", "data.augment=crop-flip", "training.momentum=0.9")
TRADES = "training.objective={kind='trades', beta=6.0, eps='8/255', step=0.007, steps=3}"


@dataclass(frozen=True)
class Case:
    overrides: tuple[str, ...]  # of mnist-sample
    budget: int  # steps of one estimate
    paper: int  # steps of a training of the paper's length
    stepped: float = 1.0  # from this share of a whole training on, a tenth of the rate


CASES = {
    "mnist-sample": Case(LENET, 1580, 1580),
    "mnist-sample-momentum-0.5": Case((*LENET, "training.momentum=0.5"), 1580, 1580),
    "mnist-sample-momentum-0.9": Case((*LENET, "training.momentum=0.9"), 1580, 1580),
    "fashion": Case(FASHION, 1580, 9380),
    "fashion-tanh": Case((*FASHION, 'model.options={ activation = "tanh" }'), 1580, 9380),
    "fashion-momentum-0.9": Case((*FASHION, "training.momentum=0.9"), 1580, 9380, 0.75),
    "mnist-sample-batch-16": Case(("training.epochs=10", "training.batch_size=16"), 1580, 3130),
    "resnet20": Case(
        (*CIFAR, "data.train_examples=5000", "model={name='resnet20'}", "training.epochs=3"), 400, 164 * 79, 2 / 3
    ),
    "densenet40": Case(
        (
            *(*CIFAR, "data.train_examples=1000", "model={name='densenet40'}"),
            *("training.epochs=6", "training.batch_size=32"),
        ),
        480,
        300 * 32,
        0.75,
    ),
    "trades": Case(
        (
            *(*CIFAR, "data.train_examples=1000", "model={name='resnet8'}", TRADES),
            *("training.epochs=4", "training.batch_size=32"),
        ),
        360,
        75 * 32,
        0.75,
    ),
}

CASES |= {
    f"{case}-15%": replace(CASES[case], budget=CASES[case].paper * 15 // 100) for case in ("resnet20", "densenet40")
}
CASES |= {  # the networks of the study: 15% of the paper's ten epochs of MNIST, and eight runs of 80 or 160 steps
    name: Case(network.overrides, *((1407, 9380) if "lenet" in name else (8 * network.edge_steps, 164 * 79)))
    for name, network in NETWORKS.items()
}


def parts_of(case: str, seed: int = 0) -> Parts:
    return assemble(load("mnist-sample", overrides=[*CASES[case].overrides, f"seed={seed}"]), device="cpu")


def train(case: str, parts: Parts, draw: int, rate: float, steps: int | None = None) -> None:
    """A whole training, or its first steps."""
    started, losses, whole = time.process_time(), [], parts.whole_training
    made: list[torch.optim.Optimizer] = []

    def new_optimizer(*arguments: Any) -> torch.optim.Optimizer:
        made.append(parts.new_optimizer(*arguments))
        return made[0]

    watched = SimpleNamespace(**vars(parts) | {"training_set": parts.training_set, "new_optimizer": new_optimizer})
    for loss in islice(Parts.losses_at(watched, rate, draw), steps or whole):
        losses.append(loss)
        if not math.isfinite(loss):
            break
        if len(losses) == round(CASES[case].stepped * whole):
            made[0].param_groups[0]["lr"] *= 0.1

    def mean(end: int, length: int) -> str:
        recent = losses[max(end - length, 0) : end]
        return f"{math.fsum(recent) / len(recent):.4g}" if recent else "inf"

    row: dict[str, object] = {"case": case, "draw": draw, "rate": f"{rate:g}", "steps": len(losses)}
    row |= {"initial": f"{losses[0]:.4g}", "cpu_seconds": f"{time.process_time() - started:.1f}"}
    if steps:
        append(SHORTS, SHORT_COLUMNS, row | {f"after_{n}": mean(n, n // 4) for n in LENGTHS})
    else:
        row |= {f"after_{n}": mean(n, n // 4) for n in SHORT}
        append(WHOLE, WHOLE_COLUMNS, row | {"final": mean(len(losses), max(len(losses) // 10, 1))})
    print(row, flush=True)


def estimate(case: str, seed: int) -> None:
    found = find_edge(parts_of(case, seed).losses_at, budget=CASES[case].budget, start=0.1)
    details = found.details
    print(case, seed, found, flush=True)
    print([(round(r, 3), w) for r, w in zip(details["rates"], details["ended_well"], strict=True)], flush=True)
    row: dict[str, object] = {"case": case, "seed": seed, "L": f"{found.constant:.4g}"}
    row |= {"low": f"{found.interval[0]:.4g}", "high": f"{found.interval[1]:.4g}"}
    row |= {"careful_rate": f"{details['careful_rate']:.4g}", "runs": len(details["rates"])}
    row |= {
        "run_steps": details["steps"],
        "spent": details["spent"],
        "share": f"{details['spent'] / CASES[case].paper:.3f}",
    }
    row |= {"stopped": details["stopped"], "identified": "yes" if found.identified else "no"}
    append(EDGES, EDGE_COLUMNS, row)


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
        for steps in SHORT:
            if not all(row[f"after_{steps}"] for row in found):
                continue
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


def results() -> None:
    """Every case: its estimates, the threshold of its whole trainings, and how many intervals hold it."""
    columns = ["network", "L (95%) of each seed", "largest / smallest", "share of a training"]
    columns += ["L by whole trainings (95%)", "held"]
    print("|", " | ".join(columns), "|")
    print("|---" * len(columns), "|", sep="")
    for case in CASES:
        found = [row for row in rows(EDGES) if row["case"] == case]
        if found:
            constants = [float(row["L"]) for row in found]
            spans = [(float(row["low"]), float(row["high"])) for row in found]
            each = [
                f"{constant:.3g} ({low:.3g} to {high:.3g}){'*' * (row['identified'] == 'no')}"
                for row, constant, (low, high) in zip(found, constants, spans, strict=True)
            ]
            share = f"{100 * max(float(row['share']) for row in found):.0f}%"
            spread = f"×{max(constants) / min(constants):.2f}"
            print(f"| `{case}` | {', '.join(each)} | {spread} | {share} | {_truth(case, spans)} |")


def _truth(case: str, spans: list[tuple[float, float]]) -> str:
    """L by whole trainings, and how many of the intervals hold it."""
    if case in NETWORKS:
        edge = 2 / _falls_below(0.75, _ways(case))
        return f"{edge:.3g} (one seed) | {sum(low <= edge <= high for low, high in spans)} of {len(spans)}"
    return _threshold(_ends(case), spans)


def _threshold(ends: list[tuple[float, bool]], spans: list[tuple[float, float]]) -> str:
    if len({well for _, well in ends}) < 2:
        return "not measured | –"
    curve = DoseResponse(0.3, [rate for rate, _ in ends], [well for _, well in ends])
    edge, (low, high) = 2 / curve.threshold(), curve.interval()
    held = sum(least <= edge <= most for least, most in spans)
    return f"{edge:.3g} ({2 / high:.3g} to {2 / low:.3g}, {len(ends)} trainings) | {held} of {len(spans)}"


def _ways(network: str) -> dict[float, float]:
    """How far the whole trainings of the study came down, by rate."""
    return {
        float(row["rate"]): float(row["initial_loss"]) - float(row["final_loss"])
        for row in rows(RUNS)
        if row["network"] == network
    }


def _ends(case: str) -> list[tuple[float, bool]]:
    """Rate of each whole training, and whether it ended well: 3/4 as far down as the median at the best rate."""
    ways: dict[float, list[float]] = {}
    for row in rows(WHOLE):
        if row["case"] == case:
            ways.setdefault(float(row["rate"]), []).append(float(row["initial"]) - float(row["final"]))
    if not ways:
        return []
    middle = {rate: statistics.median(way) for rate, way in ways.items()}
    best = max(middle, key=lambda rate: middle[rate])
    return [
        (rate, down >= 0.75 * middle[best] or (rate < best and down > 0)) for rate, way in ways.items() for down in way
    ]


def lengths(case: str = "mnist-sample") -> None:
    """How long must a short run be? Threshold and slope of the verdicts after so many steps, against one good mark."""
    found = [row for row in rows(SHORTS) if row["case"] == case]
    for n in LENGTHS:
        way = {(row["rate"], row["draw"]): float(row["initial"]) - float(row[f"after_{n}"]) for row in found}
        mark = statistics.median(down for (rate, _), down in way.items() if 0.2 < float(rate) < 0.45)
        marks = statistics.quantiles([down for (rate, _), down in way.items() if 0.2 < float(rate) < 0.45], n=10)
        rates = [float(rate) for rate, _ in way]
        curve = DoseResponse(0.5, rates, [down >= AS_FAR * mark for down in way.values()])
        low, high = curve.interval()
        steepness = math.log(curve.threshold() / curve.careful()) / math.log(19)
        print(
            f"{n} steps: threshold {curve.threshold():.3f} ({low:.3f} to {high:.3f}), slope {steepness:.2f}; "
            f"a run at 0.24 to 0.41 comes down by {marks[0]:.2f} to {marks[-1]:.2f} (first and last decile)"
        )


def peers() -> None:
    """The networks of results/rates: the estimates of `edge` there, beside the threshold of its trainings."""
    trainings = [row for row in rows(PEERS / "trainings.csv") if row["rate"] and row["method"] != "online"]
    print("| network | L (95%) of each seed | largest / smallest | L by whole trainings (95%) | held |")
    print("|---|---|---|---|---|")
    for network in dict.fromkeys(row["network"] for row in trainings):
        own = [row for row in trainings if row["network"] == network]
        by_rate: dict[float, list[float]] = {}
        for row in own:
            if row["method"] == "grid":
                by_rate.setdefault(float(row["rate"]), []).append(float(row["clean"]))
        clean = {rate: statistics.fmean(found) for rate, found in by_rate.items()}
        best = max(clean, key=lambda rate: clean[rate])
        ends = [
            (float(row["rate"]), float(row["clean"]) >= 0.75 * clean[best] or float(row["rate"]) < best) for row in own
        ]
        picks = [row for row in rows(PEERS / "picks.csv") if row["network"] == network and row["method"] == "1/L"]
        found = [[float(number) for number in re.findall(r"\d[\d.]*", pick["note"])[:3]] for pick in picks]
        spread = f"×{max(each[0] for each in found) / min(each[0] for each in found):.2f}"
        each = ", ".join(f"{constant:.3g} ({low:.3g} to {high:.3g})" for constant, low, high in found)
        print(f"| `{network}` | {each} | {spread} | {_threshold(ends, [(low, high) for _, low, high in found])} |")


def _falls_below(share: float, ways: dict[float, float]) -> float:
    """The rate above the best at which the way down, between the rates of the grid, is this share of the best's."""
    best = max(ways, key=lambda rate: ways[rate])
    above = [(rate, max(ways[rate] / ways[best], 0.0)) for rate in sorted(ways) if rate >= best]
    (left, high), (right, low) = next(pair for pair in pairwise(above) if pair[1][1] < share)
    return left * (right / left) ** ((high - share) / (high - low))


def simulate(curves: int = 60, verdicts: int = 11) -> None:
    """The sequential search on known curves: how often the interval holds the threshold, before it is widened."""
    for slope in (0.05, 0.12, 0.2, 0.3):
        rng, widths, errors, held = np.random.default_rng(1), [], [], 0
        for _ in range(curves):
            truth = 0.1 * math.exp(rng.uniform(-1, 3))
            curve = DoseResponse(0.1)
            for _ in range(verdicts):
                rate = curve.most_informative_rate()
                survived = rng.random() < 1 / (1 + (rate / truth) ** (1 / slope))
                curve = DoseResponse(0.1, [*curve.rates, rate], [*curve.survived, survived])
            low, high = curve.interval()
            widths.append(high / low)
            errors.append(math.log(curve.threshold() / truth))
            held += low <= truth <= high
        off = math.sqrt(statistics.fmean(error**2 for error in errors))
        print(
            f"slope {slope}: the interval holds the threshold in {held} of {curves}, "
            f"median width ×{statistics.median(widths):.2f}, error {off:.2f} e-folds",
            flush=True,
        )


def main(case: str, what: str = "", *numbers: str) -> None:
    torch.set_num_threads(1)
    if case in WITHOUT_TRAINING:
        return WITHOUT_TRAINING[case]()
    if what == "estimate":
        done = {row["seed"] for row in rows(EDGES) if row["case"] == case}
        for seed in numbers:
            if seed not in done:
                estimate(case, int(seed))
        return None
    parts, (draws, *rates), steps = parts_of(case), numbers, max(LENGTHS) if what == "short" else None
    done = {(row["draw"], row["rate"]) for row in rows(SHORTS if steps else WHOLE) if row["case"] == case}
    for draw in range(int(draws)):
        for rate in map(float, rates):
            if (str(draw), f"{rate:g}") not in done:
                train(case, parts, draw, rate, steps)
    return None


WITHOUT_TRAINING = {
    "verdicts": verdicts,
    "results": results,
    "lengths": lengths,
    "peers": peers,
    "simulate": simulate,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
