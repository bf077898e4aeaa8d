"""Where the lines, marks and ticks of the page's charts lie: numbers to coordinates, the template draws them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from excite.quantities import pixels

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 22, 12, 40
MARKED_POINTS = 30  # longer lines carry no marks
ROW = 26
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


@dataclass(frozen=True)
class Point:
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


@dataclass(frozen=True)
class Tick:
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
        return {
            "axis": self.axis.name.partition(" (")[0],
            "lines": [
                {
                    "name": line.name,
                    "style": line.style,
                    "points": [
                        [self.axis.text(p.at), round(self._x(p.at), 1), round(self._y(p.value), 1), self._text(p)]
                        for p in line.points
                    ],
                }
                for line in self.lines
            ],
        }

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

    @property
    def width(self) -> int:
        return WIDTH

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
