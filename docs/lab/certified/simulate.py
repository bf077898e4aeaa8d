"""Search for L on recorded runs of several lengths, to see what each constant of the rule does.

    python docs/lab/certified/simulate.py            # the rule as it is
    python docs/lab/certified/simulate.py ablate     # each constant changed, one at a time

lengths.npz holds the losses of short runs by network, steps, rate and draw (collect.py). A run of the search is one of
them with the nearest length and rate, from a random draw.
"""

import math
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
from networks import JUDGED_BEFORE, TUNING

from excite.errors import ExciteError
from excite.lipschitz import LipschitzEstimate, brief_run, dose_response, edge

SEEDS = 4
# η*: the 95% point of whole trainings (judged-fourth.csv, judged-fifth.csv), or the largest rate of a grid, a factor √2
# apart, up to which all whole trainings converge.
STAR = {
    "lenet-batch-128": 0.102,
    "lenet-batch-250": 0.702,
    "patches-transformer": 0.0226,
    "perceptron-batch-norm": 0.8,
    "perceptron-layer-norm": 1.43,
    "perceptron-plain-descent": 0.69,
    "perceptron-relu-momentum": 0.1,
    "perceptron-tanh-adamw": 0.016,
    "perceptron-tanh-batch-norm": 1.14,
    "resnet20-mnist": 0.216,
    "row-transformer-steps": 0.0243,
    "tabular-travel": 0.0204,
    "tabular-tumours": 0.128,
    "tabular-votes": 0.055,
    "three-convolutions": 0.182,
    "vision-transformer": 0.00727,
}
ABLATED: list[tuple[ModuleType, str, tuple[float, ...]]] = [
    (brief_run, "AS_FAR", (0.75, 0.95)),
    (brief_run, "RISEN", (0.0, 0.2)),
    (edge, "FIRST_LENGTH", (30, 120)),
    (edge, "NARROW", (1.2, 2.0)),
    (edge, "IDENTIFIED", (1.5, 3.0)),
    (edge, "LONGER", (2, 8)),
    (edge, "WORTHWHILE", (1.0, 3.0)),
    (edge, "LARGEST_PART", (2, 8)),
    (edge, "NEARBY", (0.25, 1.0)),
    (edge, "LEARNED", (0.1, 0.5)),
    (edge, "LEVEL", (1.0, 1.5)),
    (edge, "FEWEST_RUNS", (4, 12)),
    (edge, "LEAP", (2.0, 8.0)),
    (edge, "PLENTY", (0.3, 0.8)),
    (dose_response, "USUAL_SLOPE", (0.05, 0.2)),
    (dose_response, "SLOPE_FACTOR", (1.2, 2.0)),
    (dose_response, "DRIFT", (0.1, 0.3)),
    (dose_response, "MISJUDGED", (0.001, 0.05)),
    (dose_response, "UNKNOWN", (1.0, 4.0)),
]

Found = tuple[float, bool, float]  # 2/L over η*, whether it is identified, steps over those of a training


@cache
def recorded(name: str) -> dict[int, dict[float, list[np.ndarray]]]:
    """The losses of the runs of a network, by steps and rate."""
    runs: dict[int, dict[float, list[np.ndarray]]] = {}
    stored = np.load(Path(__file__).with_name("lengths.npz"))
    for key in stored.files:
        network, steps, rate, _draw = key.split("/")
        if network == name:
            runs.setdefault(int(steps), {}).setdefault(float(rate), []).append(stored[key].astype(float))
    return runs


def search(name: str, seed: int) -> LipschitzEstimate:
    rng, network, runs = np.random.default_rng(seed), {**TUNING, **JUDGED_BEFORE}[name], recorded(name)

    def losses_at(rate: float, _draw: int, steps: int) -> Iterator[float]:
        length = min(runs, key=lambda known: abs(math.log(known / steps)))
        nearest = min(runs[length], key=lambda known: abs(math.log(known / rate)))
        if rate > 2 * nearest:
            return iter([2.3, *[math.inf] * steps])
        losses = runs[length][nearest][rng.integers(len(runs[length][nearest]))]
        places = (number * length // steps for number in range(steps))
        return iter([float(losses[place]) if place < len(losses) else math.inf for place in places])

    rule = edge.Edge()
    return edge.find_edge(
        losses_at,
        budget=rule.usual_steps(network.steps),
        limit=rule.most_steps(network.steps),
        whole=network.steps,
        start=network.start,
    )


def searches(name: str) -> list[Found]:
    steps, found = {**TUNING, **JUDGED_BEFORE}[name].steps, []
    for seed in range(SEEDS):
        try:
            estimate = search(name, seed)
        except ExciteError:
            found.append((math.nan, False, math.nan))
            continue
        ratio = estimate.learning_rate(2) / STAR[name]
        found.append((ratio, estimate.identified, estimate.details["spent"] / steps))
    return found


def line(name: str, found: list[Found], spread: float) -> None:
    ratios = [ratio for ratio, identified, _ in found if identified]
    cost = statistics.fmean(cost for _, _, cost in found if math.isfinite(cost))
    values = f"{statistics.fmean(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f}" if ratios else "– | –"
    above = sum(ratio > 1 for ratio in ratios)
    print(f"| {name} | {len(ratios)} of {len(found)} | {values} | {above} | ×{spread:.2f} | {cost:.0%} |", flush=True)


def table(title: str = "", *, brief: bool = False) -> None:
    """One line per network and one for all of them; the spread of all is the geometric mean."""
    everything, spreads = [], []
    for name in STAR:
        found = searches(name)
        ratios = [ratio for ratio, identified, _ in found if identified]
        spreads.append(max(ratios) / min(ratios) if ratios else 1.0)
        everything += found
        if not brief:
            line(name, found, spreads[-1])
    line(title or "all", everything, statistics.geometric_mean(spreads))


def main(what: str = "") -> None:
    print("| network | identified | 2/L over η* | its range | above η* | spread | spent |")
    print("|---|---|---|---|---|---|---|")
    table("the rule", brief=what == "ablate")
    if what != "ablate":
        return
    for module, constant_name, values in ABLATED:
        usual = getattr(module, constant_name)
        for value in values:
            setattr(module, constant_name, type(usual)(value))
            table(f"{constant_name} = {value:g} (for {usual:g})", brief=True)
        setattr(module, constant_name, usual)


if __name__ == "__main__":
    main(*sys.argv[1:])
