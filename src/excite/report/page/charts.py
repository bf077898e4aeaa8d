"""What the page draws, and where its lines, marks and ticks lie: numbers to coordinates, the template draws them.

The figures' charts are matplotlib's and cannot serve the page: its import alone takes as long as a whole report does
without it, and its drawings neither follow the reader's light or dark page nor tell values to who hovers or tabs.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from excite.evaluation import Accuracy
from excite.quantities import number, pixels
from excite.runs.collection import Group, same_but, titles, without_rate
from excite.runs.experiment import Experiment
from excite.runs.folder import ArmFolder, RunFolder, arm_title
from excite.training.history import EpochMetrics

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 22, 12, 40
MARKED_POINTS = 30  # longer lines carry no marks
ROW = 26
STYLES = 7  # how many arms the style sheet tells apart
CLEAN = "clean"
APART = 52  # two ticks below the plot are no nearer than this


@dataclass(frozen=True)
class Axis:
    """What lies below a chart, how a value is written there, and whether its ticks are the values themselves."""

    name: str
    text: Callable[[float], str]
    log: bool = False
    own_ticks: bool = True


EPOCHS = Axis("epoch", lambda value: f"{value:.0f}", own_ticks=False)
RADII = Axis("ε", pixels)
RATES = Axis("first rate η¹ (log scale)", lambda value: f"{value:.3g}", log=True)


class Point(NamedTuple):
    at: float
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """An arm's values: the mean over seeds, and the range or interval of it."""

    name: str
    style: int
    points: tuple[Point, ...]


class Tick(NamedTuple):
    at: float
    text: str


@dataclass(frozen=True)
class LineChart:
    title: str
    unit: str
    lines: tuple[Line, ...]
    banded: bool  # whether low and high of its points say something
    log: bool = False
    axis: Axis = EPOCHS
    note: str = ""  # what is not drawn

    width: ClassVar = WIDTH
    height: ClassVar = HEIGHT
    plot: ClassVar = (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)  # left, top, right and bottom

    @property
    def marked(self) -> bool:
        return max(len(line.points) for line in self.lines) <= MARKED_POINTS

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last place of a point."""
        places = [point.at for line in self.lines for point in line.points]
        return min(places), max(places)

    @property
    def x_ticks(self) -> list[Tick]:
        if self.axis.own_ticks:
            return self._own_ticks()
        whole = sorted({round(value) for value in linear_ticks(*self.ends)})
        return [Tick(self._x(value), str(value)) for value in whole if self.ends[0] <= value <= self.ends[1]]

    def _own_ticks(self) -> list[Tick]:
        """Those of the points' places that have room beside each other; both ends come before what is between."""
        first, *between_ends = sorted({point.at for line in self.lines for point in line.points})
        kept: list[Tick] = []
        for place in (first, *between_ends[-1:], *between_ends[:-1]):
            tick = Tick(self._x(place), self.axis.text(place))
            if all(abs(tick.at - other.at) >= APART for other in kept):
                kept.append(tick)
        return sorted(kept, key=lambda tick: tick.at)

    @property
    def y_ticks(self) -> list[Tick]:
        low, high = self._range
        values = log_ticks(low, high) if self.log else []
        if len(values) < 2:
            values = linear_ticks(low, high)
        return [Tick(self._y(value), f"{value:.4g}") for value in values if low <= value <= high]

    def path(self, line: Line) -> str:
        return " ".join(f"{self._x(p.at):.1f},{self._y(p.value):.1f}" for p in line.points)

    def band(self, line: Line) -> str:
        """The range, there and back."""
        edges = [(p.at, p.high) for p in line.points] + [(p.at, p.low) for p in reversed(line.points)]
        return " ".join(f"{self._x(place):.1f},{self._y(value):.1f}" for place, value in edges)

    def marks(self, line: Line) -> list[tuple[float, float, str]]:
        """Each point with what it says."""
        return [(self._x(p.at), self._y(p.value), self._text(p)) for p in line.points]

    def to_json(self) -> dict[str, Any]:
        """What hovering needs: per line its points as [place, x, y, text]."""
        lines = [{"name": line.name, "style": line.style, "points": self._points(line)} for line in self.lines]
        return {"axis": self.axis.name.partition(" (")[0], "lines": lines}

    def _points(self, line: Line) -> list[tuple[str, float, float, str]]:
        marked = zip(line.points, self.marks(line), strict=True)
        return [(self.axis.text(point.at), round(x, 1), round(y, 1), text) for point, (x, y, text) in marked]

    def _text(self, point: Point) -> str:
        spread = f" ({point.low:.3g} to {point.high:.3g})" if self.banded else ""
        return f"{point.value:.4g}{self.unit}{spread}"

    @property
    def _range(self) -> tuple[float, float]:
        low = min(point.low for line in self.lines for point in line.points)
        high = max(point.high for line in self.lines for point in line.points)
        if self.log:
            return (low / 1.1, high * 1.1)
        room = 0.05 * (high - low) or 1.0
        return low - room, high + room

    def _x(self, place: float) -> float:
        first, last = self.ends
        left, _, right, _ = self.plot
        if last <= first:
            return (left + right) / 2
        if self.axis.log:
            return between(left, right, math.log(place / first) / math.log(last / first))
        return between(left, right, (place - first) / (last - first))

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

    width: ClassVar = WIDTH

    @property
    def height(self) -> int:
        return ROW * len(self.dots) + BOTTOM

    def x(self, share: float) -> float:
        return between(16, WIDTH - 24, share)


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
            charts.append(LineChart(title, unit, lines, banded=len(group.runs) > 1, log=log))
    return charts


def radius_curves(group: Group, styles: Mapping[str, int]) -> list[LineChart]:
    """A chart per attack that ran at several radii: accuracy against ε, from the images as they are on."""
    charts = []
    for attack in group.experiment.attacks:
        lines = []
        for name, style in styles.items():
            found: dict[float, list[Accuracy]] = {}
            arms = group.arms(name)
            for evaluation in (arm.evaluation for arm in arms if arm.evaluation):
                if curve := evaluation.curves.get(attack):
                    for eps, accuracy in zip((0.0, *curve.eps), (evaluation.clean, *curve.accuracies), strict=True):
                        found.setdefault(eps, []).append(accuracy)
            lines.append(_line_of(arm_title(arms) if arms else name, style, found))
        if drawn := tuple(line for line in lines if line.points):
            charts.append(LineChart(f"{attack} (%)", "%", drawn, banded=True, axis=RADII))
    return charts


def rate_curves(runs: Sequence[RunFolder], styles: Mapping[str, int]) -> list[LineChart]:
    """Of runs that differ in their rate: accuracy against η¹, a chart per attack; what diverged is told below it."""
    families = [
        family for family in same_but(without_rate, runs) if len({_rate_of(run.experiment) for run in family}) > 1
    ]
    charts = []
    for family, words in zip(families, titles(families), strict=True):
        trained = {name: [arm for run in family for arm in run.arms if arm.name == name] for name in styles}
        lost = [
            f"{arm_title(arms)} at {', '.join(f'{rate:.3g}' for rate in rates)}"
            for arms in trained.values()
            if (rates := sorted({arm.rate for arm in arms if arm.problem}))
        ]
        for on in (CLEAN, *family[0].experiment.attacks):
            lines = [
                _line_of(arm_title(trained[name]), style, _by_rate(trained[name], on))
                for name, style in styles.items()
                if trained[name]
            ]
            if drawn := tuple(line for line in lines if line.points):
                title = f"{_shown(on)} (%)" if len(families) == 1 else f"{words}: {_shown(on)} (%)"
                note = f"Diverged: {'; '.join(lost)}." if lost else ""
                charts.append(LineChart(title, "%", drawn, banded=True, axis=RATES, note=note))
    return charts


def _rate_of(experiment: Experiment) -> float:
    return number(experiment.training.schedule["rate"])


def _by_rate(arms: Iterable[ArmFolder], on: str) -> dict[float, list[Accuracy]]:
    found: dict[float, list[Accuracy]] = {}
    for arm in arms:
        if accuracy := _accuracy(arm, on):
            found.setdefault(float(f"{arm.rate:.6g}"), []).append(accuracy)
    return found


def _line_of(name: str, style: int, found: Mapping[float, Sequence[Accuracy]]) -> Line:
    """In %; see `_spread`."""
    points = (Point(place, *(100 * share for share in _spread(found[place]))) for place in sorted(found))
    return Line(name, style, tuple(points))


def _accuracy(arm: ArmFolder, on: str) -> Accuracy | None:
    if not arm.evaluation:
        return None
    return arm.evaluation.clean if on == CLEAN else arm.evaluation.robust.get(on)


def _shown(on: str) -> str:
    return "clean test images" if on == CLEAN else on


def _spread(values: Sequence[Accuracy]) -> tuple[float, float, float]:
    """The mean, and from where to where: Wilson's interval of one seed, the range over several."""
    if len(values) == 1:
        return values[0].value, *values[0].interval
    shares = [accuracy.value for accuracy in values]
    return fmean(shares), min(shares), max(shares)


def accuracy_dots(group: Group, styles: Mapping[str, int]) -> list[DotChart]:
    """A chart per attack; the bars are Wilson's interval for one seed, the range over several."""
    charts = []
    for on in (CLEAN, *group.experiment.attacks):
        dots: list[Dot] = []
        for name, style in styles.items():
            arms = group.arms(name)
            if values := [accuracy for arm in arms if (accuracy := _accuracy(arm, on))]:
                title, (value, low, high) = arm_title(arms), _spread(values)
                text = f"{title}: {100 * value:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
                dots.append(Dot(title, style, value, low, high, ROW * (len(dots) + 0.5), text))
        if dots:
            charts.append(DotChart(_shown(on), tuple(dots)))
    return charts


def arm_styles(groups: Iterable[Group]) -> dict[str, int]:
    """A number per arm, the same all over the page, in the order the arms come."""
    names = dict.fromkeys(name for group in groups for name in group.arm_names)
    return {name: number % STYLES for number, name in enumerate(names)}


def _line(group: Group, name: str, style: int, value: Callable[[EpochMetrics], float], *, above: float) -> Line:
    """What is no number, or not above `above`, is left out."""
    arms = group.arms(name)
    values: dict[int, list[float]] = {}
    for epoch in (epoch for arm in arms for epoch in arm.epochs):
        if math.isfinite(found := value(epoch)) and found > above:
            values.setdefault(epoch.epoch, []).append(found)
    points = tuple(Point(epoch, fmean(seen), min(seen), max(seen)) for epoch, seen in sorted(values.items()))
    return Line(arm_title(arms) if arms else name, style, points)
