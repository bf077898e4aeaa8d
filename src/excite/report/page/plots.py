"""What the page draws: how the arms learned, and their accuracy under each attack, at each ε and at each rate."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from excite.evaluation import Accuracy
from excite.report.alike import same_but, titles, without_rate
from excite.report.labels import arm_title
from excite.report.page.charts import RADII, RATES, ROW, Dot, DotChart, Line, LineChart, Point
from excite.runs.collection import Group
from excite.runs.experiment import Experiment
from excite.runs.folder import ArmFolder, RunFolder
from excite.training.history import EpochMetrics

STYLES = 7  # how many arms the style sheet tells apart
CLEAN = "clean"


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
            arms = [arm for run in group.runs for arm in run.arms if arm.name == name]
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
    return float(experiment.training.schedule["rate"])


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
            arms = [arm for run in group.runs for arm in run.arms if arm.name == name]
            if values := [accuracy for arm in arms if (accuracy := _accuracy(arm, on))]:
                dots.append(_dot(arm_title(arms), style, values, ROW * (len(dots) + 0.5)))
        if dots:
            charts.append(DotChart(_shown(on), tuple(dots)))
    return charts


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
    return Line(arm_title(arms) if arms else name, style, points)


def _dot(title: str, style: int, values: Sequence[Accuracy], y: float) -> Dot:
    value, low, high = _spread(values)
    text = f"{title}: {100 * value:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
    return Dot(title, style, value, low, high, y, text)
