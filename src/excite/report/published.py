"""The figures that the paper and its authors' released logs state, as data to stand beside ours.

Source: Sridhar, Sokolsky, Lee, Weimer, "Improving Neural Network Robustness via Persistency of Excitation": Tables 1
and 2 (accuracies in %, mean ± deviation over 5 seeds) and Figure 5 (b); the logs of its released code.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from excite.quantities import number
from excite.runs import Experiment, load


@dataclass(frozen=True)
class PublishedAccuracy:
    """An accuracy in %, and its deviation over seeds where one is stated."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True)
class PublishedArm:
    clean: PublishedAccuracy
    robust: PublishedAccuracy
    logged: tuple[float, float] | None = None  # clean and robust accuracy in the released AutoAttack log


LINF = {"norm": "linf"}
PGD_20: dict[str, Any] = LINF | {"kind": "pgd", "eps": 1 / 255, "steps": 20, "loss": "cross_entropy", "restarts": 1}
WHOLE: dict[str, Any] = {"version": "standard", "members": None, "iterations": 100, "queries": 5000}
AUTOATTACK: dict[str, Any] = LINF | {"kind": "autoattack", "eps": 8 / 255} | WHOLE


@dataclass(frozen=True)
class PublishedRow:
    """A row of Table 1 (PGD-20, ε = 1/255) or Table 2 (AutoAttack, ε = 8/255)."""

    table: int
    constant: float  # L
    n_maxima: int  # M
    n_points: int  # N
    epochs: int
    batch_size: int
    arms: Mapping[str, PublishedArm]

    @property
    def attack(self) -> str:
        return "PGD-20, ε = 1/255" if self.table == 1 else "AutoAttack, ε = 8/255"

    def measured_by(self, attack: Mapping[str, Any]) -> bool:
        """Whether an attack, as an experiment has its options, is that one."""
        wanted = PGD_20 if self.table == 1 else AUTOATTACK
        same = all(attack.get(key, value) == value for key, value in wanted.items() if key != "eps")
        radius = attack["eps"]
        return same and isinstance(radius, float | str) and math.isclose(number(radius), wanted["eps"])


def published_row(experiment: Experiment) -> PublishedRow | None:
    """The row that an experiment of the catalogue repeats; a small twin repeats its sibling's.

    With another loss, model or data than the catalogue's it repeats none.
    """
    row = PUBLISHED.get(at_full_scale(experiment.name))
    return row if row and _subject(experiment) == _subject(load(experiment.name)) else None


def at_full_scale(name: str) -> str:
    """The experiment whose small twin is called `name`; one of the paper's scale is that itself."""
    return name.removesuffix("-small")


def _subject(experiment: Experiment) -> tuple[str, str, str]:
    return experiment.data.name, experiment.model.name, experiment.objective


# Per line an experiment, L, M, N, epochs, batch size | baseline | 1/L | 2/L, each clean and robust accuracy.
TABLES = """
table-1-cifar10-resnet20    3.526 200 100 164 5000 |81.55±2.6 24.69±2.3  |83.03±0.2 28.72±1.3  |81.92±1.3 31.9±3.1
table-1-cifar10-resnet50    10.79 200 164 164 2000 |84.44±2 24.77±2.5    |84.29±2 27.35±2.4    |84.24±2.7 35.82±2.8
table-1-cifar10-resnet110   11.85 200 164 164 1000 |83.77±0.5 28.81±2.5  |82.63±0.9 39.08±2.5  |84.62±0.4 34.22±2.8
table-1-cifar10-densenet40  5.429 100 100 300 2000 |82.97±2.8 12.11±1.1  |85.75±2.4 14.81±0.8  |87.92±2.1 15.97±1.6
table-1-cifar100-resnet50    8.75 200 164 164  256 |63.46±4.4 6.9±1.1    |63.59±4.1 7.56±1.1   |65.01±4 8.51±1.4
table-1-cifar100-resnet110  14.48 200 164 164  256 |62.47±4.2 9.43±1.6   |60.94±4.1 12.52±1.9  |62.42±4.8 13.48±3.6
table-1-cifar100-densenet40 10.47 100 100 300  256 |60±0.2 1.82±0.1      |60±0.5 2.11±0.1      |61.97±0.6 2±0.1
table-2-trades              7.497  99  25  75  128 |84.81±0.29 52.12±0.09|84.51±0.19 52.56±0.26|83.44±0.15 52.27±0.04
table-2-pgd-at               10.4  55 150 150  256 |85.98±0.09 42.66±0.08|86.21±0.32 43.03±0.13|86.35±0.11 42.98±0.16
table-2-rst                 13.46 160 200 200  256 |89.48±0.05 59.38±0.14|89.5±0.15 59.6±0.11  |89.48±0.07 59.7±0.08
"""
# Clean and robust accuracy in the released AutoAttack logs.
LOGS = """
table-2-trades              | 84.44 52.17   | 84.36 52.19   | 83.24 52.32
table-2-pgd-at              | 86.05 42.72   | 85.73 42.84   | 86.46 42.99
table-2-rst                 | 89.5 59.4     | 89.68 59.46   | 89.46 59.66
"""
ARMS = ("baseline", "poe", "largest")


def _parts(text: str) -> dict[str, list[list[str]]]:
    """By the first word of each line, the words between its bars."""
    lines = [[part.split() for part in line.split("|")] for line in text.strip().splitlines()]
    return {first[0]: [first[1:], *others] for first, *others in lines}


def _stated(text: str) -> PublishedAccuracy:
    mean, deviation = map(float, text.split("±"))
    return PublishedAccuracy(mean, deviation)


def _published() -> dict[str, PublishedRow]:
    logs, rows = _parts(LOGS), {}
    for name, (settings, *accuracies) in _parts(TABLES).items():
        constant, (m, n, epochs, batch_size) = float(settings[0]), map(int, settings[1:])
        arms = {
            arm: PublishedArm(_stated(clean), _stated(robust))
            for arm, (clean, robust) in zip(ARMS, accuracies, strict=True)
        }
        for arm, (clean, robust) in zip(ARMS, logs.get(name, [[]])[1:], strict=False):
            arms[arm] = replace(arms[arm], logged=(float(clean), float(robust)))
        rows[name] = PublishedRow(int(name[len("table-")]), constant, m, n, epochs, batch_size, arms)
    return rows


PUBLISHED = _published()

# Figure 5 (b): L of ResNet-20 on CIFAR-10, a row per M and a column per N.
FIGURE_5_MAXIMA = (25, 55, 105, 155, 200)
FIGURE_5_POINTS = (80, 100, 120, 150, 164)
FIGURE_5_CONSTANTS = (
    (0.3385, 0.0282, 2.06, 5.26, 0.0128),
    (8.44, 11.2, 0.0308, 1.90, 3.70),
    (0.0449, 7.40, 2.08, 0.0244, 0.0169),
    (3.50, 0.028, 1.33, 0.0591, 0.0152),
    (6.99, 3.526, 0.260, 0.0371, 6.04),
)
