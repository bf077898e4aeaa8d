"""Search for L on recorded trainings of the tuning networks, to see what each constant of the rule does.

    python docs/lab/certified/simulate.py            # the rule as it is
    python docs/lab/certified/simulate.py ablate     # each constant changed, one at a time

traces.npz holds the losses of whole trainings (collect.py) and of short runs that go through a decaying schedule. A run
of the search is one of them with the nearest rate, from a random draw. η* is the largest rate of the grid, a factor √2
apart, up to which all trainings converge, so the true value may be up to 1.4 times as large.
"""

import math
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
from networks import TUNING, constant

from excite.errors import ExciteError
from excite.lipschitz import LipschitzEstimate, brief_run, dose_response, edge

SEEDS = 6
ABLATED: list[tuple[ModuleType, str, tuple[float, ...]]] = [
    (brief_run, "AS_FAR", (0.75, 0.95)),
    (brief_run, "SLOWER", (0.25, 0.9)),
    (brief_run, "RISEN", (0.0, 0.2)),
    (edge, "RUNS", (4, 16)),
    (edge, "FEWEST_STEPS", (20, 100)),
    (edge, "TRANSFER", (0.2, 0.5)),
    (edge, "MUCH_SHORTER", (1.01, 20.0)),
    (edge, "NARROW", (1.2, 2.0)),
    (edge, "IDENTIFIED", (1.5, 3.0)),
    (edge, "LEARNED", (0.05, 0.3)),
    (edge, "LEAST", (0.05, 0.2)),
    (edge, "LEVEL", (1.0, 1.5)),
    (edge, "FEWEST_RUNS", (3, 8)),
    (edge, "LEAP", (2.0, 8.0)),
    (edge, "CONTRADICTION", (1.2, 2.0)),
    (edge, "PLENTY", (0.3, 0.8)),
    (dose_response, "USUAL_SLOPE", (0.05, 0.2)),
    (dose_response, "SLOPE_FACTOR", (1.2, 2.0)),
    (dose_response, "MISJUDGED", (0.001, 0.05)),
    (dose_response, "DECAY", (1.0, 4.0)),
]

Runs = dict[int, list[np.ndarray]]  # by k: the rate is start · 2^(k/2)


class Recorded:
    """The recorded trainings of one network."""

    def __init__(self, name: str) -> None:
        self.network = TUNING[name]
        stored = _stored()
        self.whole: Runs = {}
        self.short: dict[int, Runs] = {}  # by their steps
        for key, losses in stored.items():
            kind, network, k, *rest = key.split("/")
            if network == name:
                runs = self.whole if kind == "whole" else self.short.setdefault(int(rest[1]), {})
                runs.setdefault(int(k), []).append(losses.astype(float))
        steps = self.network.steps
        initial = statistics.fmean(losses[0] for runs in self.whole.values() for losses in runs)
        ways = {k: [initial - _final(losses, steps) for losses in runs] for k, runs in self.whole.items()}
        best = max(ways, key=lambda k: statistics.median(ways[k]))
        needed = 0.9 * statistics.median(ways[best])
        self.converging = {k: statistics.fmean(way >= needed for way in own) for k, own in sorted(ways.items())}
        self.largest = best
        for k in sorted(k for k in ways if k > best):
            if self.converging[k] < 1:
                break
            self.largest = k

    def search(self, seed: int) -> LipschitzEstimate:
        rng, network = np.random.default_rng(seed), self.network

        def losses_at(rate: float, _draw: int, steps: int) -> Iterator[float]:
            k, runs, length = round(2 * math.log2(rate / network.start)), self.whole, steps
            if network.schedule is not constant and self.short:
                length = min(self.short, key=lambda known: abs(math.log(known / steps)))
                runs = self.short[length]
            if k > max(runs):
                return iter([2.3, math.inf])
            recorded = runs[max(k, min(runs))]
            losses = recorded[rng.integers(len(recorded))]
            taken = (
                losses[number * length // steps] for number in range(steps) if number * length // steps < len(losses)
            )
            return iter([*taken, *[math.inf] * steps][:steps])

        return edge.find_edge(
            losses_at,
            budget=max(round(0.15 * network.steps), edge.SHORTEST),
            limit=max(network.steps, edge.FEWEST_IN_ALL),
            whole=network.steps,
            start=network.start,
        )

    def chance(self, rate: float) -> float:
        """The share of whole trainings that converge at this rate, between those of the grid."""
        return float(
            np.interp(2 * math.log2(rate / self.network.start), list(self.converging), list(self.converging.values()))
        )


@cache
def _stored() -> dict[str, np.ndarray]:
    return dict(np.load(Path(__file__).with_name("traces.npz")))


def _final(losses: np.ndarray, steps: int) -> float:
    complete = len(losses) == steps and np.isfinite(losses).all()
    return float(losses[-max(steps // 10, 1) :].mean()) if complete else math.inf


def table(*, brief: bool = False) -> None:
    """One line per network, or one for all of them."""
    everything: list[tuple[float, float, float, bool, float, float]] = []
    for name in TUNING:
        recorded = Recorded(name)
        steps, star = recorded.network.steps, recorded.network.start * 2 ** (recorded.largest / 2)
        found = []
        for seed in range(SEEDS):
            try:
                estimate = recorded.search(seed)
            except ExciteError:
                continue
            rate = estimate.learning_rate(2)
            chances = recorded.chance(rate), recorded.chance(rate / 2)
            found.append((rate / star, *chances, estimate.identified, estimate.details["spent"] / steps))
        identified = [each for each in found if each[3]]
        spread = max(e[0] for e in identified) / min(e[0] for e in identified) if identified else 1.0
        everything += [(*each, spread) for each in found]
        if not brief:
            _line(name, [(*each, spread) for each in found])
    _line("all", everything)


def _line(name: str, found: list[tuple[float, float, float, bool, float, float]]) -> None:
    trained = [each for each in found if each[3]]
    if not trained:
        print(f"| {name} | 0 of {len(found)} | – | – | – | – | – | – |", flush=True)
        return
    ratios = [each[0] for each in trained]
    middle = math.exp(statistics.fmean(map(math.log, ratios)))
    print(
        f"| {name} | {len(trained)} of {len(found)} | {middle:.2f} | {min(ratios):.2f} to {max(ratios):.2f} | "
        f"×{max(each[5] for each in trained):.1f} | {statistics.fmean(e[1] for e in trained):.0%} | "
        f"{statistics.fmean(e[2] for e in trained):.0%} | {statistics.fmean(e[4] for e in found):.0%} |",
        flush=True,
    )


def main(what: str = "") -> None:
    print("| network | identified | 2/L over η* | its range | spread | converge at 2/L | at 1/L | spent |")
    print("|---|---|---|---|---|---|---|---|")
    if what != "ablate":
        return table()
    table(brief=True)
    for module, constant_name, values in ABLATED:
        usual = getattr(module, constant_name)
        for value in values:
            setattr(module, constant_name, value)
            print(f"| {constant_name} = {value:g} (for {usual:g}) ", end="")
            table(brief=True)
        setattr(module, constant_name, usual)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
