"""Tables 1 and 2: a row per experiment and arm, over its seeds, beside the paper's numbers."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from excite.evaluation import Accuracy, Evaluation
from excite.evaluation.paired import paired_difference
from excite.lipschitz.estimate import LipschitzEstimate
from excite.report import labels
from excite.report.against_trainings import standing
from excite.report.tables.formats import Cell, Mark, Value, latex, markdown
from excite.report.tables.published import PublishedArm, PublishedRow, Stated, published_row
from excite.report.tables.records import Record, as_csv, as_json
from excite.report.tables.text import prose, terminal_width, text_table
from excite.runs.arms import arm_named
from excite.runs.collection import Group
from excite.runs.folder import ArmFolder

NOTHING = Cell("–", None)
DAGGER = "†"
MARKED = "Bold and underlined: the best and the second best accuracy under each attack in an experiment."
KEYS = (("setting",), ("arm",))  # columns that say which row it is


@dataclass(frozen=True)
class Column:
    """A heading, and where its values stand in JSON: `("robust", "PGD-20")`."""

    title: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """An arm of the experiment number `group`; its cells stand below the table's columns."""

    group: int
    arm: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class StudyTable:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    records: tuple[Record, ...]
    legend: tuple[str, ...]  # what the numbers mean
    warnings: tuple[str, ...]  # what went wrong, or is not to be trusted

    @property
    def notes(self) -> tuple[str, ...]:
        return self.legend + self.warnings

    @property
    def titles(self) -> list[str]:
        return [column.title for column in self.columns]

    def markdown(self) -> str:
        """The table and, below it, what its numbers mean and what to distrust."""
        return "\n\n".join([markdown(self.titles, [row.cells for row in self.rows]), *self.notes])

    def latex(self) -> str:
        groups = [[row.cells for row in rows] for _, rows in groupby(self.rows, key=lambda row: row.group)]
        names = dict.fromkeys(record.experiment for record in self.records)
        return latex(self.titles, groups, caption=" ".join(self.legend), label=f"tab:{'-'.join(names)}")

    def csv(self) -> str:
        return as_csv(self.records)

    def to_json(self, verdict: str = "") -> dict[str, Any]:
        return as_json(self.records, verdict=verdict, notes=self.notes)

    def text(self, width: int | None = None) -> str:
        """For a terminal: what is the same in every row stands above, once."""
        titles, rows = self.titles, [[cell.text for cell in row.cells] for row in self.rows]
        same = [n for n, c in enumerate(self.columns) if c.path not in KEYS and len({row[n] for row in rows}) == 1]
        above = " · ".join(f"{titles[n]} {rows[0][n]}" for n in same if rows[0][n] != NOTHING.text)
        keys = [n for n, column in enumerate(self.columns) if column.path in KEYS and n not in same]
        shown = [*keys, *(n for n in range(len(titles)) if n not in (*keys, *same))]
        body = text_table(
            [titles[n] for n in shown], [[row[n] for n in shown] for row in rows], keys=len(keys), width=width
        )
        notes = "\n".join(note for note in self.notes if note != MARKED)
        return "\n\n".join(
            part for part in (prose(above, width or terminal_width()), body, prose(notes, width)) if part
        )

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, eq=False)
class _Arm:
    """One arm of one group, over its seeds."""

    name: str
    title: str
    group: Group
    apart: str
    results: tuple[ArmFolder, ...]  # of the seeds at which it was trained
    published: PublishedRow | None

    @property
    def evaluations(self) -> dict[int, Evaluation]:
        """By seed, where there is one."""
        return _evaluations(self.group, self.name)

    @property
    def diverged(self) -> int:
        return sum(result.problem is not None for result in self.results)

    @property
    def flags(self) -> list[str]:
        """What the trust checks of its evaluations say, each warning once."""
        return list(dict.fromkeys(str(flag) for evaluation in self.evaluations.values() for flag in evaluation.flags))

    @property
    def stated(self) -> PublishedArm | None:
        return self.published.arms.get(self.name) if self.published else None


def study_table(groups: Sequence[Group]) -> StudyTable:
    """A row per group and arm: mean ± standard deviation over seeds (one seed: Wilson's interval).

    The best accuracy under each attack is marked in every group, and the second; an arm that diverged at one of its
    seeds is left out of that, for the seeds that remain are the lucky ones. The difference to the baseline is paired
    by test image and seed: see `paired.paired_difference`. The paper's numbers stand beside the experiments whose name
    says that they repeat a row of its tables.
    """
    apart = labels.apart([group.experiment for group in groups])
    arms = [arm for group, words in zip(groups, apart, strict=True) for arm in _arms(group, words)]
    columns = _columns(arms)
    cells = {column: [show(arm) for arm in arms] for column, show in columns.items()}
    numbers = [groups.index(arm.group) for arm in arms]
    for column in (column for column in columns if column.path[0] == "robust"):
        for number in set(numbers):
            mine = [index for index, other in enumerate(numbers) if other == number]
            marks = _marks([None if arms[index].diverged else cells[column][index].order for index in mine])
            for index, mark in zip(mine, marks, strict=True):
                cells[column][index] = replace(cells[column][index], mark=mark)
    rows = tuple(
        Row(number, arm.name, tuple(cells[column][index] for column in columns))
        for index, (number, arm) in enumerate(zip(numbers, arms, strict=True))
    )
    records = tuple(
        record
        for index, arm in enumerate(arms)
        for record in _records(arm, {column.path: cells[column][index] for column in columns})
    )
    return StudyTable(tuple(columns), rows, records, tuple(_legend(arms)), tuple(_warnings(arms)))


def _records(arm: _Arm, cells: Mapping[tuple[str, ...], Cell]) -> Iterable[Record]:
    """What the cells say, attack by attack, in the fields that never change."""
    experiment, rate, constant = arm.group.experiment, _part(cells, "rate"), _part(cells, "L")
    by = cells[("L_by",)].value
    for images in ("clean", *(path[1] for path in cells if path[0] == "robust")):
        accuracy = _part(cells, *(("clean",) if images == "clean" else ("robust", images)))
        difference = _part(cells, "difference", images)
        stated = _part(cells, "paper", "clean" if images == "clean" else "robust")
        yield Record(
            experiment=experiment.name,
            data=labels.data_set(experiment),
            model=labels.network(experiment),
            objective=labels.objective(experiment),
            setting=arm.apart,
            epochs=experiment.training.epochs,
            batch_size=experiment.training.batch_size,
            arm=arm.name,
            title=arm.title,
            seeds=len(arm.group.runs),
            evaluated=len(arm.evaluations),
            diverged=arm.diverged,
            rate=rate["mean"],
            rate_low=rate["low"],
            rate_high=rate["high"],
            L=constant.get("mean"),
            L_low=constant.get("low"),
            L_high=constant.get("high"),
            L_by=str(by) if by else None,
            L_identified=constant.get("identified"),
            L_trusted=constant.get("trusted"),
            images=images,
            number=accuracy.get("images"),
            accuracy=accuracy.get("mean"),
            deviation=accuracy.get("sd"),
            low=accuracy.get("low"),
            high=accuracy.get("high"),
            difference=difference.get("difference"),
            difference_low=difference.get("low"),
            difference_high=difference.get("high"),
            difference_seeds=difference.get("seeds"),
            mark=None if images == "clean" else cells[("robust", images)].mark,
            doubted=bool(arm.flags) and images != "clean",
            paper=stated.get("mean"),
            paper_deviation=stated.get("sd"),
        )


def _part(cells: Mapping[tuple[str, ...], Cell], *path: str) -> dict[str, Any]:
    """The numbers of a cell; none where it is empty or not there."""
    value = cells[path].value if path in cells else None
    return dict(value) if isinstance(value, Mapping) else {}


def _arms(group: Group, apart: str) -> list[_Arm]:
    trained = dict.fromkeys(result.name for run in group.runs for result in run.arms)
    published = published_row(group.experiment)
    found = []
    for name in trained:
        results = tuple(result for run in group.runs for result in run.arms if result.name == name)
        found.append(_Arm(name, labels.arm_title(results), group, apart, results, published))
    return found


def _columns(arms: Sequence[_Arm]) -> dict[Column, Callable[[_Arm], Cell]]:
    """What is the same everywhere, or nowhere, gets no column: objective, settings, the paper's numbers."""
    attacks = list(dict.fromkeys(name for arm in arms for ev in arm.evaluations.values() for name in ev.attacks))
    columns: dict[Column, Callable[[_Arm], Cell]] = {
        Column("data", ("data",)): lambda arm: _text(labels.data_set(arm.group.experiment)),
        Column("model", ("model",)): lambda arm: _text(labels.network(arm.group.experiment)),
    }
    if any(labels.objective(arm.group.experiment) != "standard" for arm in arms):
        columns[Column("objective", ("objective",))] = lambda arm: _text(labels.objective(arm.group.experiment))
    if any(arm.apart for arm in arms):
        columns[Column("setting", ("setting",))] = lambda arm: _text(arm.apart)
    columns |= {
        Column("arm", ("arm",)): lambda arm: Cell(arm.title, arm.name, arm.name),
        Column("seeds", ("seeds",)): _seeds,
        Column("rate η¹", ("rate",)): lambda arm: _range([result.rate for result in arm.results]),
        Column("L", ("L",)): _constant,
        Column("by", ("L_by",)): _method,
        Column("epochs", ("epochs",)): lambda arm: _number(arm.group.experiment.training.epochs),
        Column("batch", ("batch",)): lambda arm: _number(arm.group.experiment.training.batch_size),
        Column("clean %", ("clean",)): partial(_accuracy, on="clean"),
    }
    columns |= {Column(f"{attack} %", ("robust", attack)): partial(_accuracy, on=attack) for attack in attacks}
    columns |= {Column(f"Δ {on}", ("difference", on)): partial(_difference, on=on) for on in ("clean", *attacks)}
    if any(arm.stated for arm in arms):
        columns |= {
            Column("paper: clean %", ("paper", "clean")): lambda arm: _stated(arm.stated.clean if arm.stated else None),
            Column("paper: robust %", ("paper", "robust")): lambda arm: _stated(
                arm.stated.robust if arm.stated else None
            ),
            Column("paper: L, (M, N), epochs, batch", ("paper", "settings")): _published_settings,
        }
    if any(arm.stated and arm.stated.logged for arm in arms):
        columns[Column("released log: clean / robust %", ("paper", "released_log"))] = _logged
    return columns


def _text(text: str) -> Cell:
    return Cell(text, text, text) if text else NOTHING


def _number(number: int) -> Cell:
    return Cell(f"{number}", number, number)


def _range(values: Sequence[float]) -> Cell:
    """The mean over seeds and, where they differ, from where to where they go."""
    mean, low, high = statistics.mean(values), min(values), max(values)
    text = f"{mean:.4g}" if high - low <= 1e-9 * high else f"{mean:.3g} ({low:.3g}–{high:.3g})"
    return Cell(text, {"mean": mean, "low": low, "high": high}, mean)


def _seeds(arm: _Arm) -> Cell:
    evaluated, runs = len(arm.evaluations), len(arm.group.runs)
    text = f"{runs}" if evaluated == runs else f"{evaluated} of {runs}"
    if arm.diverged:
        text += f" ({arm.diverged} diverged)"
    return Cell(text, {"evaluated": evaluated, "diverged": arm.diverged, "runs": runs}, evaluated)


def _estimates(arm: _Arm) -> list[LipschitzEstimate]:
    return [run.estimate for run in arm.group.runs if run.estimate]


def _constant(arm: _Arm) -> Cell:
    estimates = _estimates(arm)
    if not estimates:
        return NOTHING
    cell = _range([estimate.constant for estimate in estimates])
    identified = all(estimate.identified for estimate in estimates)
    trusted = all(standing(run.estimate, run.arms).trusted for run in arm.group.runs if run.estimate)
    value = cell.value if isinstance(cell.value, dict) else {}
    facts = {"identified": identified, "trusted": trusted}
    return Cell(cell.text if trusted else f"{cell.text} ?", value | facts, cell.order)


def _method(arm: _Arm) -> Cell:
    """How L was found, and (M, N) where the method has them."""
    words = dict.fromkeys(
        f"{estimate.method} ({estimate.details['M']}, {estimate.details['N']})"
        if "M" in estimate.details
        else estimate.method
        for estimate in _estimates(arm)
    )
    return _text(", ".join(words))


def _accuracy(arm: _Arm, on: str) -> Cell:
    found = [_measured(evaluation, on) for evaluation in arm.evaluations.values()]
    accuracies = [accuracy for accuracy in found if accuracy]
    if not accuracies:
        return Cell("diverged", None) if arm.diverged else NOTHING
    dagger = f" {DAGGER}" if arm.flags and on != "clean" else ""
    mean = 100 * statistics.mean(accuracy.value for accuracy in accuracies)
    value: dict[str, Value] = {"mean": mean, "sd": None, "low": None, "high": None, "images": accuracies[0].total}
    if len(accuracies) == 1:
        value["low"], value["high"] = (100 * bound for bound in accuracies[0].interval)
        return Cell(f"{mean:.2f} ({value['low']:.2f}–{value['high']:.2f}){dagger}", value, mean)
    deviation = value["sd"] = 100 * statistics.stdev(accuracy.value for accuracy in accuracies)
    return Cell(f"{mean:.2f} ± {deviation:.2f}{dagger}", value, mean)


def _measured(evaluation: Evaluation, on: str) -> Accuracy | None:
    return evaluation.clean if on == "clean" else evaluation.robust.get(on)


def _difference(arm: _Arm, on: str) -> Cell:
    baselines = _evaluations(arm.group, "baseline")
    pairs = [
        (baselines[seed], evaluation)
        for seed, evaluation in arm.evaluations.items()
        if seed in baselines and _measured(evaluation, on) and _measured(baselines[seed], on)
    ]
    if arm.name == "baseline" or not pairs:
        return NOTHING
    found = paired_difference(pairs, on)
    difference, low, high = (100 * number for number in (found.difference, *found.interval))
    value = {"difference": difference, "low": low, "high": high, "seeds": found.seeds}
    fewer = f" at {found.seeds} of {len(arm.group.runs)} seeds" if found.seeds < len(arm.group.runs) else ""
    text = f"{difference:+.2f} ({low:+.2f} to {high:+.2f}){fewer}".replace("-", "−")
    return Cell(text, value, difference)


def _evaluations(group: Group, name: str) -> dict[int, Evaluation]:
    return {
        run.experiment.seed: result.evaluation
        for run in group.runs
        for result in run.arms
        if result.name == name and result.evaluation
    }


def _stated(figure: Stated | None) -> Cell:
    return NOTHING if figure is None else Cell(str(figure), {"mean": figure.mean, "sd": figure.deviation}, figure.mean)


def _published_settings(arm: _Arm) -> Cell:
    row = arm.published
    if row is None or arm.stated is None:
        return NOTHING
    value: dict[str, Value] = {
        "L": row.constant,
        "M": row.n_maxima,
        "N": row.n_points,
        "epochs": row.epochs,
        "batch": row.batch_size,
        "attack": row.attack,
    }
    text = f"{row.constant:g}, ({row.n_maxima}, {row.n_points}), {row.epochs}, {row.batch_size}"
    return Cell(text, value, row.constant)


def _logged(arm: _Arm) -> Cell:
    if not (arm.stated and arm.stated.logged):
        return NOTHING
    clean, robust = arm.stated.logged
    return Cell(f"{clean:.2f} / {robust:.2f}", {"clean": clean, "robust": robust}, robust)


def _marks(values: Sequence[float | str | None]) -> list[Mark | None]:
    """The best and, unless several share that place, the second; nothing where there is nothing to choose from."""
    numbers = [value for value in values if isinstance(value, float)]
    ranked = sorted(set(numbers), reverse=True)
    places: dict[float, Mark] = {}
    if len(ranked) > 1:
        places[ranked[0]] = "best"
        if numbers.count(ranked[0]) == 1:
            places[ranked[1]] = "second"
    return [places.get(value) if isinstance(value, float) else None for value in values]


def _legend(arms: Sequence[_Arm]) -> Iterable[str]:
    if any(len(arm.evaluations) > 1 for arm in arms):
        yield "Accuracies in %, mean ± standard deviation over seeds (one seed: Wilson's 95% interval in brackets)."
    else:
        yield "Accuracies in %, in brackets Wilson's 95% interval for the choice of test images; one training per arm."
    yield MARKED
    yield (
        "Δ: points gained on the baseline under that attack, paired by test image and seed, with a 95% interval for "
        "the luck of both (of the images alone where there is one seed)."
    )
    if any("?" in _constant(arm).text for arm in arms):
        yield "L with a question mark: the data do not identify it, or a training has shown that 2/L is off."
    yield from dict.fromkeys(
        f"Paper: its Table {arm.published.table}, {arm.published.attack}, 5 seeds." for arm in arms if arm.published
    )
    published = dict.fromkeys(arm.group.experiment.name for arm in arms if arm.published)
    small = [name for name in published if name.endswith("-small")]
    if small:
        yield (
            f"{', '.join(small)}: a small twin, not the paper's scale; the paper's numbers stand beside it for "
            "orientation, not for comparison."
        )
    if any(arm_named(arm.name).multiple for arm in arms):
        yield labels.POE
    if any(arm.flags for arm in arms):
        yield f"{DAGGER}: the attack's trust checks warn that the true accuracy may be lower."


def _warnings(arms: Sequence[_Arm]) -> Iterable[str]:
    for arm in arms:
        who = f"{labels.network(arm.group.experiment)}, {arm.title}"
        yield from (f"{who}, do not trust this yet: {flag}" for flag in arm.flags)
    for group in dict.fromkeys(arm.group for arm in arms):
        for run in group.runs:
            if run.estimate and run.estimate.identified and not (found := standing(run.estimate, run.arms)).trusted:
                yield f"{labels.network(group.experiment)}, seed {run.experiment.seed}, L is off: {found.words}."
    for arm in arms:
        who = f"{labels.network(arm.group.experiment)}, {arm.title}"
        yield from dict.fromkeys(f"{who}: {result.problem}" for result in arm.results if result.problem)
