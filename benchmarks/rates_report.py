"""Tables and figure of docs/lab/rates.md, from the trainings in results/rates."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.rates import BY_ITSELF, GRID, NETWORKS, ONLINE, RATES, RESULTS, SEEDS, trainings
from benchmarks.regret import Mean, Training, best_rate, failed, regrets, spread
from excite.files import write_text
from excite.report.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCUMENT = Path(__file__).parents[1] / "docs" / "lab" / "rates.md"
MEASURES = {"clean": "clean", "robust": "PGD"}
OURS = (
    "1/L (certified)",
    "2/L (certified)",
    "1/L",
    "2/L",
    "careful",
    ONLINE,
)  # "1/L" and "2/L" use an older estimate of L
METHODS = (*OURS, "torch-lr-finder", "Lightning lr_find", "grid of five", "customary 0.1", *BY_ITSELF)
COMPARED = ("customary 0.1", "1/L", "2/L", ONLINE)  # compared with `online`


class Results:
    """All trainings, and for each network the seeds with which every method was trained, if there are two or more."""

    def __init__(self, found: Sequence[Training]) -> None:
        self.all = found
        complete = {name: [seed for seed in SEEDS if self._complete(name, seed)] for name in NETWORKS}
        self.seeds = {name: seeds for name, seeds in complete.items() if len(seeds) >= 2}
        self.networks = list(self.seeds)
        self.cells = sum(map(len, self.seeds.values()))

    def _complete(self, network: str, seed: int) -> bool:
        found = [each for each in self.all if (each.network, each.seed) == (network, seed)]
        methods = {each.method for each in found}
        return methods >= set(METHODS) and len({each.rate for each in found if each.method == GRID}) == RATES

    def of(self, network: str, method: str) -> list[Training]:
        wanted = (network, method)
        return [e for e in self.all if (e.network, e.method) == wanted and e.seed in self.seeds[network]]

    def grid(self, network: str) -> list[Training]:
        return self.of(network, GRID)

    def regrets(self, network: str, method: str, measure: str) -> dict[int, float]:
        return regrets(self.of(network, method), self.grid(network), measure)

    def worst(self, method: str) -> tuple[Mean, str, str]:
        """The largest mean regret over networks and measures, with its network and measure."""
        means = [
            (Mean.of([*self.regrets(network, method, measure).values()]), network, measure)
            for network in self.networks
            for measure in MEASURES
        ]
        return max(means, key=lambda entry: entry[0].value)

    def mean(self, method: str, measure: str) -> Mean:
        """Mean over networks for each common seed, then over these seeds."""
        common = set.intersection(*(set(seeds) for seeds in self.seeds.values()))
        by_seed = [[self.regrets(network, method, measure)[seed] for network in self.networks] for seed in common]
        return Mean.of([float(np.mean(values)) for values in by_seed])

    def failures(self, method: str) -> int:
        return sum(failed(each, self.grid(n)) for n in self.networks for each in self.of(n, method))

    def spread(self, method: str) -> float | None:
        rates = {n: [each.rate for each in self.of(n, method) if each.rate] for n in self.networks}
        return spread(rates) if all(rates.values()) else None

    def cost(self, method: str) -> float:
        """Cost in whole trainings, including the search and steps that were rolled back."""
        whole = {network: self.grid(network)[0].steps for network in self.networks}
        every = [each for network in self.networks for each in self.of(network, method)]
        return float(np.mean([(each.search_steps + each.steps) / whole[each.network] for each in every]))


def report() -> None:
    results = Results(trainings())
    fill("peers", peers_table(results))
    fill("regrets", regrets_table(results))
    fill("picks", picks_table(results))
    fill("online", online_table(results))
    style.save(figure(results), "rates", "Accuracy against the rate, and the rates that methods picked", RESULTS)


def fill(name: str, table: str) -> None:
    """Write `table` between the comments with its name."""
    before, begin, rest = DOCUMENT.read_text(encoding="utf-8").partition(f"<!-- begin {name} -->\n")
    _, end, after = rest.partition(f"<!-- end {name} -->")
    write_text(DOCUMENT, f"{before}{begin}{table}\n{end}{after}")


def peers_table(results: Results) -> str:
    def cells(method: str) -> Iterable[str]:
        worst, network, measure = results.worst(method)
        factor = results.spread(method)
        yield f"{worst}, {MEASURES[measure]}, `{network}`"
        yield from (str(results.mean(method, measure)) for measure in MEASURES)
        yield f"{results.failures(method)} of {results.cells}"
        yield "–" if factor is None else f"×{factor:.3g}"
        yield f"{results.cost(method):.2f}"

    head = ["worst-case regret, points (95%), where", "mean regret, clean", "mean regret, PGD"]
    return _table(["method", *head, "failed", "spread of the pick", "cost, trainings"], METHODS, cells)


def regrets_table(results: Results) -> str:
    """Mean regret over the seeds, clean / PGD, and the best rates."""

    def cells(method: str) -> Iterable[str]:
        for network in results.networks:
            means = [float(np.mean([*results.regrets(network, method, measure).values()])) for measure in MEASURES]
            yield " / ".join(f"{mean:.1f}" for mean in means)

    head = [
        f"`{network}`, {len(results.seeds[network])} seeds, best at {best_rate(results.grid(network), 'clean'):.3g} / "
        f"{best_rate(results.grid(network), 'robust'):.3g}"
        for network in results.networks
    ]
    return _table(["method", *head], METHODS, cells)


def picks_table(results: Results) -> str:
    def cells(method: str) -> Iterable[str]:
        for network in results.networks:
            yield ", ".join(f"{each.rate:.3g}" for each in results.of(network, method) if each.rate) or "–"

    methods = [method for method in METHODS if results.spread(method) is not None]
    return _table(["method", *(f"`{network}`" for network in results.networks)], methods, cells)


def online_table(results: Results) -> str:
    """Rates, steps rolled back and accuracies of `online`, compared with other methods, over all common seeds."""
    lines = []
    for network in NETWORKS:
        found = {
            method: {each.seed: each for each in results.all if (each.network, each.method) == (network, method)}
            for method in COMPARED
        }
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())))
        if not seeds:
            continue
        rates = {
            method: ", ".join(f"{by_seed[seed].rate or 0:.3g}" for seed in seeds) for method, by_seed in found.items()
        }
        lost = [each.search_steps / (each.steps + each.search_steps) for seed in seeds if (each := found[ONLINE][seed])]
        cells = [
            f"{Mean.of([by_seed[seed].clean for seed in seeds]).value:.1f} / "
            f"{Mean.of([by_seed[seed].robust for seed in seeds]).value:.1f}"
            for by_seed in found.values()
        ]
        row = [f"`{network}`, {len(seeds)} seeds", rates["1/L"], rates["2/L"], rates[ONLINE]]
        lines.append([*row, f"{np.mean(lost):.1%} (at most {max(lost):.1%})", *cells])
    head = ["network", "1/L", "2/L", "`online` settles at", "steps rolled back"]
    head += [f"{method}: clean / PGD" for method in COMPARED]
    return "\n".join(["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *lines]])


def _table(head: Sequence[str], methods: Iterable[str], cells: Callable[[str], Iterable[str]]) -> str:
    names = {method: f"**{method}**" if method in OURS else method for method in METHODS}
    rows = [head, ["---"] * len(head), *([names[method], *cells(method)] for method in methods)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def figure(results: Results) -> "Figure":
    """For each network, accuracy against the rate of the grid; below, the picked rates, one row per method."""
    shown = [method for method in METHODS if results.spread(method) is not None]
    with style.settings():
        drawn, panels = style.panels((len(results.networks) + 1) // 2, 2, width=4.6, height=3.8)
        for network, axes in zip(results.networks, panels, strict=False):
            for measure, look in zip(MEASURES, style.LOOKS, strict=False):
                points: dict[float, list[float]] = {}
                for each in results.grid(network):
                    points.setdefault(each.rate or 0.0, []).append(getattr(each, measure))
                style.mean_and_range(axes, points, look, f"{MEASURES[measure]} accuracy")
            for row, method in enumerate(shown, start=1):
                picked = [each.rate for each in results.of(network, method) if each.rate]
                colour = style.VERMILION if method in OURS else style.INK
                axes.plot(picked, [-7 * row] * len(picked), "|", color=colour, markersize=7)
                axes.annotate(
                    f"{method} ", (0, -7 * row), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=7
                )
            axes.set_xscale("log")
            axes.set_yticks(range(0, 101, 25))
            style.label(axes, "learning rate (log scale)", "accuracy (%)", NETWORKS[network].title)
        for empty in panels[len(results.networks) :]:
            empty.remove()
        style.legend_below(drawn, panels[: len(results.networks)])
    return drawn
