"""Where the lines, marks and ticks of the page's charts lie: numbers to coordinates, the template draws them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from excite.evaluation import Accuracy
from excite.runs.collection import Group
from excite.training.history import EpochMetrics

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 12, 40
MARKED_EPOCHS = 30  # longer lines carry no marks
ROW = 26
STYLES = 7  # how many arms the style sheet tells apart


@dataclass(frozen=True)
class Point:
    epoch: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """An arm's values per epoch: the mean over seeds, and the range of it."""

    name: str
    style: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class LineChart:
    title: str
    unit: str
    lines: tuple[Line, ...]
    seeds: int
    log: bool = False

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def height(self) -> int:
        return HEIGHT

    @property
    def plot(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the plot."""
        return LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM

    @property
    def marked(self) -> bool:
        return max(len(line.points) for line in self.lines) <= MARKED_EPOCHS

    @property
    def epochs(self) -> tuple[int, int]:
        numbers = [point.epoch for line in self.lines for point in line.points]
        return min(numbers), max(numbers)

    @property
    def x_ticks(self) -> list[Tick]:
        whole = sorted({round(value) for value in linear_ticks(*self.epochs)})
        return [Tick(self._x(value), str(value)) for value in whole if self.epochs[0] <= value <= self.epochs[1]]

    @property
    def y_ticks(self) -> list[Tick]:
        low, high = self._range
        values = log_ticks(low, high) if self.log else []
        if len(values) < 2:
            values = linear_ticks(low, high)
        return [Tick(self._y(value), f"{value:.4g}") for value in values if low <= value <= high]

    def path(self, line: Line) -> str:
        return " ".join(f"{self._x(p.epoch):.1f},{self._y(p.value):.1f}" for p in line.points)

    def band(self, line: Line) -> str:
        """The range over seeds, there and back."""
        edges = [(p.epoch, p.high) for p in line.points] + [(p.epoch, p.low) for p in reversed(line.points)]
        return " ".join(f"{self._x(epoch):.1f},{self._y(value):.1f}" for epoch, value in edges)

    def marks(self, line: Line) -> list[tuple[float, float, str]]:
        """Each point with what it says."""
        return [(self._x(p.epoch), self._y(p.value), self._text(p)) for p in line.points]

    def to_json(self) -> dict[str, Any]:
        """What hovering needs: per line its points as [epoch, x, y, text]."""
        return {
            "lines": [
                {
                    "name": line.name,
                    "style": line.style,
                    "points": [
                        [p.epoch, round(self._x(p.epoch), 1), round(self._y(p.value), 1), self._text(p)]
                        for p in line.points
                    ],
                }
                for line in self.lines
            ]
        }

    def _text(self, point: Point) -> str:
        spread = f" ({point.low:.3g} to {point.high:.3g})" if self.seeds > 1 else ""
        return f"{point.value:.4g}{self.unit}{spread}"

    @property
    def _range(self) -> tuple[float, float]:
        low = min(point.low for line in self.lines for point in line.points)
        high = max(point.high for line in self.lines for point in line.points)
        if self.log:
            return (low / 1.1, high * 1.1)
        room = 0.05 * (high - low) or 1.0
        return low - room, high + room

    def _x(self, epoch: float) -> float:
        first, last = self.epochs
        left, _, right, _ = self.plot
        return between(left, right, (epoch - first) / (last - first)) if last > first else (left + right) / 2

    def _y(self, value: float) -> float:
        low, high = self._range
        _, top, _, bottom = self.plot
        if self.log:
            return between(bottom, top, math.log(value / low) / math.log(high / low))
        return between(bottom, top, (value - low) / (high - low))


@dataclass(frozen=True)
class Dot:
    name: str
    style: int
    value: float
    low: float
    high: float
    y: float
    text: str


@dataclass(frozen=True)
class DotChart:
    """Accuracies of the arms under one attack, a row each, from 0 to 100%."""

    title: str
    dots: tuple[Dot, ...]

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def height(self) -> int:
        return ROW * len(self.dots) + BOTTOM

    def x(self, share: float) -> float:
        return between(16, WIDTH - 24, share)


def learning_curves(group: Group, styles: Mapping[str, int]) -> list[LineChart]:
    """Training loss, clean accuracy and, where it was recorded, robust accuracy against epochs."""
    wanted: list[tuple[str, str, bool, Callable[[EpochMetrics], float]]] = [
        ("Training loss (nats, log scale)", "", True, lambda epoch: epoch.loss),
        ("Clean test accuracy (%)", "%", False, lambda epoch: 100 * epoch.extra.get("test_accuracy", math.nan)),
        ("Robust test accuracy (%)", "%", False, lambda epoch: 100 * epoch.extra.get("robust_accuracy", math.nan)),
    ]
    charts = []
    for title, unit, log, value in wanted:
        drawn = (_line(group, name, style, value, above=0.0 if log else -math.inf) for name, style in styles.items())
        if lines := tuple(line for line in drawn if line.points):
            charts.append(LineChart(title, unit, lines, len(group.runs), log))
    return charts


def accuracy_dots(group: Group, styles: Mapping[str, int]) -> list[DotChart]:
    """A chart per attack; the bars are Wilson's interval for one seed, the range over several."""
    charts = []
    for on in ("clean", *group.experiment.attacks):
        dots: list[Dot] = []
        for name, style in styles.items():
            found = [
                (arm.title, arm.evaluation.clean if on == "clean" else arm.evaluation.robust[on])
                for run in group.runs
                for arm in run.arms
                if arm.name == name and arm.evaluation and (on == "clean" or on in arm.evaluation.attacks)
            ]
            if found:
                titles, values = zip(*found, strict=True)
                dots.append(_dot(titles[0], style, values, ROW * (len(dots) + 0.5)))
        if dots:
            charts.append(DotChart("clean test images" if on == "clean" else on, tuple(dots)))
    return charts


def between(start: float, end: float, share: float) -> float:
    return start + share * (end - start)


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, at most about `most` of them.

    >>> linear_ticks(0, 10)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from `low` to `high`; powers alone where that would be many.

    >>> log_ticks(0.1, 2)
    [0.1, 0.2, 0.5, 1.0, 2.0]
    """
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    return [float(f"{power * factor:.0e}") for power in powers for factor in factors if low <= power * factor <= high]


def arm_styles(groups: Iterable[Group]) -> dict[str, int]:
    """A number per arm, the same all over the page, in the order the arms come."""
    names = dict.fromkeys(arm.name for group in groups for run in group.runs for arm in run.arms)
    return {name: number % STYLES for number, name in enumerate(names)}


def _line(group: Group, name: str, style: int, value: Callable[[EpochMetrics], float], *, above: float) -> Line:
    """What is no number, or not above `above`, is left out."""
    arms = [arm for run in group.runs for arm in run.arms if arm.name == name]
    values: dict[int, list[float]] = {}
    for epoch in (epoch for arm in arms for epoch in arm.epochs):
        if math.isfinite(found := value(epoch)) and found > above:
            values.setdefault(epoch.epoch, []).append(found)
    points = tuple(Point(epoch, fmean(seen), min(seen), max(seen)) for epoch, seen in sorted(values.items()))
    return Line(arms[0].title if arms else name, style, points)


def _dot(title: str, style: int, values: Sequence[Accuracy], y: float) -> Dot:
    value = fmean(accuracy.value for accuracy in values)
    if len(values) == 1:
        low, high = values[0].interval
    else:
        low, high = min(a.value for a in values), max(a.value for a in values)
    text = f"{title}: {100 * value:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
    return Dot(title, style, value, low, high, y, text)
