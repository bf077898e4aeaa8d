"""The figures that the paper and its authors' released logs state, as data to stand beside ours.

Source: Sridhar, Sokolsky, Lee, Weimer, "Improving Neural Network Robustness via Persistency of Excitation": Tables 1
and 2 (accuracies in %, mean ± deviation over 5 seeds) and Figure 5 (b); the logs of its released code.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from excite.report.labels import objective
from excite.runs import Experiment, load


@dataclass(frozen=True)
class Stated:
    """An accuracy in %, and its deviation over seeds where one is stated."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True)
class PublishedArm:
    clean: Stated
    robust: Stated
    logged: tuple[float, float] | None = None  # clean and robust accuracy in the released AutoAttack log


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


def published_row(experiment: Experiment) -> PublishedRow | None:
    """The row that an experiment of the catalogue repeats; a small twin repeats its sibling's.

    With another loss, model or data than the catalogue's it repeats none.
    """
    row = PUBLISHED.get(experiment.name.removesuffix("-small"))
    return row if row and _subject(experiment) == _subject(load(experiment.name)) else None


def _subject(experiment: Experiment) -> tuple[str, str, str]:
    return experiment.data.name, experiment.model.name, objective(experiment)


def _row(table: int, *arms: PublishedArm, L: float, MN: tuple[int, int], epochs: int, batch_size: int) -> PublishedRow:
    return PublishedRow(table, L, *MN, epochs, batch_size, dict(zip(("baseline", "poe", "largest"), arms, strict=True)))


def _arm(clean: float, clean_deviation: float, robust: float, robust_deviation: float, *logged: float) -> PublishedArm:
    stated = Stated(clean, clean_deviation), Stated(robust, robust_deviation)
    return PublishedArm(*stated, logged=(logged[0], logged[1]) if logged else None)


PUBLISHED: Mapping[str, PublishedRow] = {
    "table-1-cifar10-resnet20": _row(
        1,
        _arm(81.55, 2.6, 24.69, 2.3),
        _arm(83.03, 0.2, 28.72, 1.3),
        _arm(81.92, 1.3, 31.9, 3.1),
        L=3.526,
        MN=(200, 100),
        epochs=164,
        batch_size=5000,
    ),
    "table-1-cifar10-resnet50": _row(
        1,
        _arm(84.44, 2.0, 24.77, 2.5),
        _arm(84.29, 2.0, 27.35, 2.4),
        _arm(84.24, 2.7, 35.82, 2.8),
        L=10.79,
        MN=(200, 164),
        epochs=164,
        batch_size=2000,
    ),
    "table-1-cifar10-resnet110": _row(
        1,
        _arm(83.77, 0.5, 28.81, 2.5),
        _arm(82.63, 0.9, 39.08, 2.5),
        _arm(84.62, 0.4, 34.22, 2.8),
        L=11.85,
        MN=(200, 164),
        epochs=164,
        batch_size=1000,
    ),
    "table-1-cifar10-densenet40": _row(
        1,
        _arm(82.97, 2.8, 12.11, 1.1),
        _arm(85.75, 2.4, 14.81, 0.8),
        _arm(87.92, 2.1, 15.97, 1.6),
        L=5.429,
        MN=(100, 100),
        epochs=300,
        batch_size=2000,
    ),
    "table-1-cifar100-resnet50": _row(
        1,
        _arm(63.46, 4.4, 6.9, 1.1),
        _arm(63.59, 4.1, 7.56, 1.1),
        _arm(65.01, 4.0, 8.51, 1.4),
        L=8.75,
        MN=(200, 164),
        epochs=164,
        batch_size=256,
    ),
    "table-1-cifar100-resnet110": _row(
        1,
        _arm(62.47, 4.2, 9.43, 1.6),
        _arm(60.94, 4.1, 12.52, 1.9),
        _arm(62.42, 4.8, 13.48, 3.6),
        L=14.48,
        MN=(200, 164),
        epochs=164,
        batch_size=256,
    ),
    "table-1-cifar100-densenet40": _row(
        1,
        _arm(60.0, 0.2, 1.82, 0.1),
        _arm(60.0, 0.5, 2.11, 0.1),
        _arm(61.97, 0.6, 2.0, 0.1),
        L=10.47,
        MN=(100, 100),
        epochs=300,
        batch_size=256,
    ),
    "table-2-trades": _row(
        2,
        _arm(84.81, 0.29, 52.12, 0.09, 84.44, 52.17),
        _arm(84.51, 0.19, 52.56, 0.26, 84.36, 52.19),
        _arm(83.44, 0.15, 52.27, 0.04, 83.24, 52.32),
        L=7.497,
        MN=(99, 25),
        epochs=75,
        batch_size=128,
    ),
    "table-2-pgd-at": _row(
        2,
        _arm(85.98, 0.09, 42.66, 0.08, 86.05, 42.72),
        _arm(86.21, 0.32, 43.03, 0.13, 85.73, 42.84),
        _arm(86.35, 0.11, 42.98, 0.16, 86.46, 42.99),
        L=10.40,
        MN=(55, 150),
        epochs=150,
        batch_size=256,
    ),
    "table-2-rst": _row(
        2,
        _arm(89.48, 0.05, 59.38, 0.14, 89.50, 59.40),
        _arm(89.5, 0.15, 59.6, 0.11, 89.68, 59.46),
        _arm(89.48, 0.07, 59.7, 0.08, 89.46, 59.66),
        L=13.46,
        MN=(160, 200),
        epochs=200,
        batch_size=256,
    ),
}

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
