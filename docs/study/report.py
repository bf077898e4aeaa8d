"""Tables and figures of docs/lab/baselines.md from the CSV files and traces: seconds, no training.

python docs/study/report.py
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from estimates import ESTIMATES
from grid import BASELINES, HERE, NETWORKS, RUNS, rows, trace_path
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from excite.files import write_text
from excite.trace import Trace

GOAL = 1.5
DOCUMENT = HERE.parent / "lab" / "baselines.md"

# Okabe and Ito's palette; markers say the same in black and white.
BLUE, VERMILION, GREEN, ORANGE, PINK, SKY, BLACK = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#CC79A7",
    "#56B4E9",
    "#000000",
)
METHODS = {
    "edge": VERMILION,
    "curvature": GREEN,
    "local": ORANGE,
    "local largest": PINK,
    "local median": SKY,
    "epochs": BLACK,
}
SHORT = {"lenet-relu": "LeNet-5 ReLU", "lenet-tanh": "LeNet-5 tanh"} | {
    f"resnet-{kind}-{momentum}": f"ResNet-8 {title}, momentum {momentum}"
    for kind, title in (("bn", "BN"), ("plain", "no BN"))
    for momentum in ("0.9", "0")
}


@dataclass(frozen=True)
class Truth:
    """What the grid says about one network."""

    rates: list[float]  # of the runs that did not diverge
    clean: list[float]
    robust: list[float]
    diverged: list[float]
    examples: int = 1000

    @property
    def best_robust(self) -> float:
        return self.rates[int(np.argmax(self.robust))]

    @property
    def best_clean(self) -> float:
        return self.rates[int(np.argmax(self.clean))]

    @property
    def largest(self) -> float:
        """The largest rate that trained: a clean accuracy of at least 3/4 of the best."""
        clean = zip(self.rates, self.clean, strict=True)
        return max(rate for rate, accuracy in clean if accuracy >= 0.75 * max(self.clean))

    @property
    def too_large(self) -> list[float]:
        """Rates above the best that did not train."""
        trained = zip(self.rates, self.clean, strict=True)
        failed = [rate for rate, accuracy in trained if accuracy < 0.75 * max(self.clean)]
        return sorted(rate for rate in [*failed, *self.diverged] if rate > self.best_clean)

    def near_best(self, values: list[float]) -> list[float]:
        """Rates within one standard error of a difference from the best: 1,000 images do not tell them apart."""
        best = max(values)
        error = (2 * best * (1 - best) / self.examples) ** 0.5
        return [rate for rate, value in zip(self.rates, values, strict=True) if value >= best - error]


def truth(name: str, seed: int = 0) -> Truth:
    mine = [row for row in rows(RUNS) if (row["network"], row["seed"]) == (name, str(seed))]
    mine.sort(key=lambda row: float(row["rate"]))
    good = [row for row in mine if not row["problem"]]
    return Truth(
        rates=[float(row["rate"]) for row in good],
        clean=[float(row["clean"]) for row in good],
        robust=[float(row["robust"]) for row in good],
        diverged=[float(row["rate"]) for row in mine if row["problem"]],
    )


def miss(one_over_L: float, best: float) -> float:
    """By which factor `best` lies outside [1/L, 2/L]; 1 inside. The goal is at most 1.5."""
    return max(one_over_L / best, best / (2 * one_over_L), 1.0)


def main() -> None:
    names = [name for name in NETWORKS if any(row["network"] == name for row in rows(RUNS))]
    fill(DOCUMENT, "truth", truth_table(names))
    fill(DOCUMENT, "estimates", estimate_table(names))
    fill(DOCUMENT, "summary", summary_table(names))
    fill(DOCUMENT, "seeds", seeds_table(names))
    save(law_figure(names), "slope-times-rate")
    save(accuracy_figure(names), "accuracy-against-rate")


def fill(document: Path, name: str, table: str) -> None:
    """Put `table` between the comments that carry its name."""
    before, begin, rest = document.read_text(encoding="utf-8").partition(f"<!-- begin {name} -->\n")
    _, end, after = rest.partition(f"<!-- end {name} -->")
    write_text(document, f"{before}{begin}{table}\n{end}{after}")


def truth_table(names: Iterable[str]) -> str:
    lines = [
        "| network | best PGD (within one s.e.) | best clean (within one s.e.) | largest trained | did not train |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        t = truth(name)
        lines.append(
            f"| {SHORT[name]} | {t.best_robust:g} ({_list(t.near_best(t.robust))}) | "
            f"{t.best_clean:g} ({_list(t.near_best(t.clean))}) | {t.largest:g} | {_list(t.too_large)} |"
        )
    return "\n".join(lines)


def estimate_table(names: Iterable[str]) -> str:
    lines = [
        "| network | method | " + " | ".join(f"from {b:g}: L; 1/L to 2/L; miss" for b in BASELINES) + " |",
        "|---|---|" + "---|" * len(BASELINES),
    ]
    for name in names:
        best = truth(name).best_robust
        for method in METHODS:
            cells = []
            for baseline in BASELINES:
                row = _estimate(name, method, baseline)
                cell = "–"
                if row:
                    one = float(row["one_over_L"])
                    trust = "" if row["identified"] == "True" else "*"
                    cell = f"{float(row['L']):.3g}{trust}; {one:.3g} to {2 * one:.3g}; ×{miss(one, best):.2g}"
                cells.append(cell)
            lines.append(f"| {SHORT[name]} | {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary_table(names: Iterable[str]) -> str:
    """Per method: how often the best PGD rate, or one within a standard error of it, was met, and the worst miss."""
    lines = [
        "| method | best PGD rate met | a rate within one s.e. of it met | worst miss | spread of L over baselines |",
        "|---|---|---|---|---|",
    ]
    truths = {name: truth(name) for name in names}
    for method in METHODS:
        one_over = {
            name: [float(row["one_over_L"]) for baseline in BASELINES if (row := _estimate(name, method, baseline))]
            for name in truths
        }
        strict = [miss(one, truths[name].best_robust) for name, ones in one_over.items() for one in ones]
        loose = [
            min(miss(one, rate) for rate in truths[name].near_best(truths[name].robust))
            for name, ones in one_over.items()
            for one in ones
        ]
        spread = max((max(ones) / min(ones) for ones in one_over.values() if ones), default=1.0)
        lines.append(
            f"| {method} | {sum(m <= GOAL for m in strict)} of {len(strict)} | {sum(m <= GOAL for m in loose)} of "
            f"{len(loose)} | ×{max(strict, default=1.0):.2g} | ×{spread:.2g} |"
        )
    return "\n".join(lines)


def seeds_table(names: Iterable[str]) -> str:
    """The edge over initial weights and data orders."""
    lines = ["| network | L by edge, a seed each | largest / smallest |", "|---|---|---|"]
    for name in names:
        edges = {
            row["seed"]: float(row["L"])
            for row in rows(ESTIMATES)
            if (row["network"], row["method"], row["baseline"]) == (name, "edge", f"{BASELINES[-1]:g}")
        }
        if len(edges) > 1:
            listed = ", ".join(f"{edges[seed]:.3g}" for seed in sorted(edges))
            lines.append(f"| {SHORT[name]} | {listed} | {max(edges.values()) / min(edges.values()):.2f} |")
    return "\n".join(lines)


def slopes_times_rates(name: str) -> list[tuple[float, np.ndarray]]:
    """Local slope × rate in the second half of the steps at the initial rate, per run that lasted that long."""
    products = []
    for rate in truth(name).rates:
        trace = Trace.load(trace_path(name, 0, rate))
        at_rate = np.isclose(trace.slope_learning_rates, rate)
        late = trace.slope_steps > trace.slope_steps[at_rate].max() / 2
        products.append((rate, trace.slopes[at_rate & late] * rate))
    return products


def law_figure(names: list[str]) -> Figure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    looks = zip(names, (BLUE, SKY, VERMILION, ORANGE, GREEN, PINK), "os^v<D", strict=False)
    for name, colour, marker in looks:
        points = slopes_times_rates(name)
        rates = [rate for rate, _ in points]
        middle = [float(np.median(products)) for _, products in points]
        axes.plot(rates, middle, color=colour, marker=marker, markersize=5, label=SHORT[name])
    for level, text in ((1, "slope = 1/η"), (2, "slope = 2/η")):
        axes.axhline(level, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.annotate(text, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("learning rate η (log scale)")
    axes.set_ylabel("median local slope × η (no unit, log scale)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    return figure


def accuracy_figure(names: list[str]) -> Figure:
    """Per network the accuracies and, on an axis of their own below them, each estimate's rates from 1/L to 2/L."""
    pairs = (len(names) + 1) // 2
    figure = Figure(figsize=(9.5, 4.6 * pairs))
    panels = figure.subplots(3 * pairs, 2, squeeze=False, height_ratios=[3, 2, 0.9] * pairs)  # the third is empty
    figure.subplots_adjust(left=0.11, right=0.99, top=0.98, bottom=0.02, hspace=0.08, wspace=0.32)
    for axes in panels.flat:
        axes.set_visible(False)
    for number, name in enumerate(names):
        row, column = divmod(number, 2)
        above, below = panels[3 * row][column], panels[3 * row + 1][column]
        for axes in (above, below):
            axes.set_visible(True)
        _draw_accuracies(above, name)
        _draw_ranges(below, name)
        below.set_xlim(above.get_xlim())
    handles, words = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, words, loc="lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _draw_accuracies(axes: Axes, name: str) -> None:
    t = truth(name)
    axes.plot(t.rates, [100 * v for v in t.clean], color=BLUE, marker="o", markersize=4, label="clean accuracy")
    axes.plot(t.rates, [100 * v for v in t.robust], color=BLACK, marker="s", markersize=4, label="PGD accuracy")
    axes.plot(t.diverged, [0.0] * len(t.diverged), "x", color=BLACK, label="diverged", clip_on=False)
    axes.set_xscale("log")
    low, high = min([*t.rates, 0.005]), max([*t.rates, *t.diverged, 2.0])
    axes.set_xlim(low / 1.5, high * 4)
    axes.set_ylim(0, 102)
    axes.set_yticks(range(0, 101, 20))
    axes.set_title(SHORT[name], fontsize=9)
    axes.set_ylabel("accuracy (%)", fontsize=8)
    axes.tick_params(labelsize=8, labelbottom=False)
    axes.grid(alpha=0.25)


def _draw_ranges(axes: Axes, name: str) -> None:
    """A row per method, with a bar from 1/L to 2/L per baseline that it was estimated from."""
    for place, (method, colour) in enumerate(METHODS.items()):
        for number, baseline in enumerate(BASELINES):
            if row := _estimate(name, method, baseline):
                one, height = float(row["one_over_L"]), place + 0.25 * (number - (len(BASELINES) - 1) / 2)
                axes.plot([one, 2 * one], [height] * 2, color=colour, linewidth=3, solid_capstyle="butt")
    axes.set_xscale("log")
    axes.set_ylim(len(METHODS) - 0.4, -0.6)
    axes.set_yticks(range(len(METHODS)), list(METHODS))
    axes.set_ylabel("1/L to 2/L by", fontsize=8)
    axes.set_xlabel("learning rate (log scale)", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, axis="x")


def save(figure: Figure, name: str) -> None:
    with rc_context({"svg.hashsalt": name}):  # the same figure, the same file
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    figure.savefig(HERE / f"{name}.png", dpi=130)


def _estimate(name: str, method: str, baseline: float) -> dict[str, str] | None:
    wanted = (name, "0", f"{baseline:g}", method)
    matching = (r for r in rows(ESTIMATES) if (r["network"], r["seed"], r["baseline"], r["method"]) == wanted)
    return next(matching, None)


def _list(rates: list[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


if __name__ == "__main__":
    main()
