"""The tables of runs: a row per arm, of one run with its costs, of many over their seeds beside the paper's numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

from excite.evaluation import Accuracy, Evaluation
from excite.registry import named_options
from excite.report.tables.formats import Cell, Mark, latex, markdown, prose, terminal_width, text_table
from excite.report.tables.published import at_full_scale
from excite.report.tables.records import TableRecord, as_csv, as_json
from excite.report.tables.study_columns import DAGGER, NOTHING, Column, StudyArm, arms_of, columns_for, constant
from excite.report.trainings import doubted, doubted_together, mean_of
from excite.report.verdict import verdict
from excite.runs.arms import POE, arm_named
from excite.runs.collection import Group, apart
from excite.runs.folder import ArmFolder, RunFolder, arm_title

MARKED = (
    "Bold and underlined: the best and the second best accuracy under each attack in an experiment, of arms that "
    "neither diverged nor learned nothing."
)
MEDIAN = (
    "Median minimal ε: the radius at which half of the test images are wrong, by straight lines between the radii that "
    "were tried; mean ± standard deviation over seeds (one seed: a 95% interval). The accuracy is that at the largest."
)
Number = TypeVar("Number", float, float | None)
BEST_MEANS = "best: with the weights that stood best on held-out training images; the others are the last weights."
KEYS = (("setting",), ("arm",))  # columns that say which row it is


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
    records: tuple[TableRecord, ...]
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
        """What is the same in every row stands in the caption."""
        above, shown, keys = self._layout()
        groups = [
            [[row.cells[n] for n in shown] for row in rows] for _, rows in groupby(self.rows, key=lambda row: row.group)
        ]
        names = dict.fromkeys(record.experiment for record in self.records)
        caption = " ".join([f"{above}." if above else "", *self.legend]).strip()
        titles = [self.titles[n] for n in shown]
        return latex(titles, groups, keys=keys, caption=caption, label=f"tab:{'-'.join(names)}")

    def csv(self) -> str:
        return as_csv(self.records)

    def to_json(self, verdict: str = "") -> dict[str, Any]:
        return as_json(self.records, verdict=verdict, notes=self.notes)

    def text(self, width: int | None = None) -> str:
        """For a terminal: what is the same in every row stands above, once."""
        above, shown, keys = self._layout()
        rows = [[row.cells[n].text for n in shown] for row in self.rows]
        body = text_table([self.titles[n] for n in shown], rows, keys=keys, width=width)
        notes = "\n".join(note for note in self.notes if note != MARKED)
        return "\n\n".join(
            part for part in (prose(above, width or terminal_width()), body, prose(notes, width)) if part
        )

    def _layout(self) -> tuple[str, list[int], int]:
        """What is the same in every row, in words; the columns that are not, those that say which row it is first."""
        rows = [[cell.text for cell in row.cells] for row in self.rows]
        same = [n for n, c in enumerate(self.columns) if c.path not in KEYS and len({row[n] for row in rows}) == 1]
        above = " · ".join(f"{self.titles[n]} {rows[0][n]}" for n in same if rows[0][n] != NOTHING.text)
        keys = [n for n, column in enumerate(self.columns) if column.path in KEYS and n not in same]
        return above, [*keys, *(n for n in range(len(self.columns)) if n not in (*keys, *same))], len(keys)

    def __str__(self) -> str:
        return self.text()


def study_table(groups: Sequence[Group]) -> StudyTable:
    """A row per group and arm: mean ± standard deviation over seeds (one seed: Wilson's interval).

    The best accuracy under each attack is marked in every group, and the second; an arm that diverged or learned
    nothing at one of its seeds is left out of that, for the seeds that remain are the lucky ones, and who guesses is
    not robust. The difference to the baseline is paired by test image and seed: see `paired_difference`. The paper's
    numbers stand beside the experiments whose name says that they repeat a row of its tables.
    """
    told_apart = zip(groups, apart([group.experiment for group in groups]), strict=True)
    arms = [arm for group, words in told_apart for arm in arms_of(group, words)]
    columns = columns_for(arms)
    cells = {column: [show(arm) for arm in arms] for column, show in columns.items()}
    numbers = [groups.index(arm.group) for arm in arms]
    for column in (column for column in columns if column.path[0] == "robust"):
        for number in set(numbers):
            mine = [index for index, other in enumerate(numbers) if other == number]
            marks = _marks([None if arms[index].lost else cells[column][index].order for index in mine])
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


def _records(arm: StudyArm, cells: Mapping[tuple[str, ...], Cell]) -> Iterable[TableRecord]:
    """What the cells say, attack by attack, in the fields that never change."""
    experiment, rate, constant = arm.group.experiment, _part(cells, "rate"), _part(cells, "L")
    by, beside = cells[("L_by",)].value, mean_of(arm.confounders)
    for images in ("clean", *(path[1] for path in cells if path[0] == "robust")):
        accuracy = _part(cells, *(("clean",) if images == "clean" else ("robust", images)))
        difference = _part(cells, "difference", images)
        median = _part(cells, "median", images)
        attack = experiment.attacks.get(images)  # another experiment of the table may have it alone
        same = images == "clean" or (attack and arm.published and arm.published.measured_by(attack))
        stated = _part(cells, "paper", "clean" if images == "clean" else "robust") if same else {}
        best, best_difference = _part(cells, "best", images), _part(cells, "best_difference", images)
        yield TableRecord(
            experiment=experiment.name,
            data=experiment.data_set,
            model=experiment.network,
            objective=experiment.objective,
            setting=arm.apart,
            epochs=experiment.training.epochs,
            batch_size=_whole(beside.batch_size),
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
            doubted=images != "clean" and any(one.flags for one in arm.evaluations.values()),
            paper=stated.get("mean"),
            paper_deviation=stated.get("sd"),
            median_eps=median.get("mean"),
            median_eps_deviation=median.get("sd"),
            median_eps_low=median.get("low"),
            median_eps_high=median.get("high"),
            best_accuracy=best.get("mean"),
            best_deviation=best.get("sd"),
            best_difference=best_difference.get("difference"),
            best_difference_low=best_difference.get("low"),
            best_difference_high=best_difference.get("high"),
            rate_per_image=beside.rate_per_image,
            rate_times_decay=beside.rate_times_decay,
            steps=_whole(beside.steps),
            steps_after_drop=_whole(beside.steps_after_drop),
            final_rate=beside.final_rate,
            final_loss=beside.final_loss,
            train_accuracy=None if beside.train_accuracy is None else 100 * beside.train_accuracy,
        )


def _whole(number: Number) -> Number:
    """Without a point where it needs none."""
    return int(number) if number is not None and number == int(number) else number


def _part(cells: Mapping[tuple[str, ...], Cell], *path: str) -> dict[str, Any]:
    """The numbers of a cell; none where it is empty or not there."""
    value = cells[path].value if path in cells else None
    return dict(value) if isinstance(value, Mapping) else {}


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


def _legend(arms: Sequence[StudyArm]) -> Iterable[str]:
    if any(len(arm.evaluations) > 1 for arm in arms):
        yield "Accuracies in %, mean ± standard deviation over seeds (one seed: Wilson's 95% interval in brackets)."
    else:
        yield "Accuracies in %, in brackets Wilson's 95% interval for the choice of test images; one training per arm."
    yield MARKED
    if any(evaluation.curves for arm in arms for evaluation in arm.evaluations.values()):
        yield MEDIAN
    yield (
        "Δ: points gained on the baseline under that attack, paired by test image and seed, with a 95% interval for "
        "the luck of both (of the images alone where there is one seed)."
    )
    if any(arm.best for arm in arms):
        yield BEST_MEANS
    if any("?" in constant(arm).text for arm in arms):
        yield "L with a question mark: the data do not identify it, or trainings speak against it."
    yield from dict.fromkeys(
        f"Paper: its Table {arm.published.table}, {arm.published.attack}, 5 seeds." for arm in arms if arm.published
    )
    published = dict.fromkeys(arm.group.experiment.name for arm in arms if arm.published)
    small = [name for name in published if at_full_scale(name) != name]
    if small:
        yield (
            f"{', '.join(small)}: a small twin, not the paper's scale; the paper's numbers stand beside it for "
            "orientation, not for comparison."
        )
    if any(arm_named(arm.name).multiple for arm in arms):
        yield POE
    if any(arm.doubts for arm in arms):
        yield f"{DAGGER}: the attack's trust checks warn that the true accuracy may be lower."


def _warnings(arms: Sequence[StudyArm]) -> Iterable[str]:
    for arm in arms:
        who = f"{arm.group.experiment.network}, {arm.title}"
        yield from (f"{who}{whose}, do not trust this yet: {flag}" for whose, flag in arm.doubts)
    for group in dict.fromkeys(arm.group for arm in arms):
        for run in group.runs:
            who = f"{group.experiment.network}, seed {run.experiment.seed}"
            yield from (f"{who}, {name} is in doubt: {words}." for name, words in doubted(run).items())
        together = doubted_together(group.runs)
        yield from (f"{group.experiment.network}, {name} is in doubt: {words}." for name, words in together.items())
    for arm in arms:
        who = f"{arm.group.experiment.network}, {arm.title}"
        yield from dict.fromkeys(f"{who}: {result.problem}" for result in arm.results if result.problem)


@named_options
def table(results: RunFolder) -> str:
    """The rows as text, with L below them."""
    examples = next((arm.evaluation.clean.total for arm in results.arms if arm.evaluation), 0)
    notes = [verdict(results), f"Accuracies on {examples} test images, in brackets their 95% interval (Wilson)."]
    if _has_best(results):
        notes.append(BEST_MEANS)
    if results.estimate:
        notes.append(f"{results.estimate} Estimated in {results.estimate_seconds:.1f} s.")
    if any(arm_named(arm.name).multiple for arm in results.arms):
        notes.append(POE)
    notes += [f"{arm_title([arm])}: {arm.problem}" for arm in results.arms if arm.problem]
    notes += [
        f"{arm.title}{whose}, do not trust this yet: {flag}" for arm in results.arms for whose, flag in arm.doubts
    ]
    body = text_table(_columns(results), [_row(results, arm) for arm in results.arms])
    return "\n".join([body, "", *map(prose, notes)])


def _columns(results: RunFolder) -> list[str]:
    images = ["clean", *results.experiment.attacks]
    best = [f"best: {name} %" for name in images] if _has_best(results) else []
    medians = [f"median minimal ε, {name}" for name in _at_several_radii(results)]
    return ["arm", "rate η¹", *(f"{name} %" for name in images), *best, *medians, "train s", "attack s"]


def _has_best(results: RunFolder) -> bool:
    return any(arm.best.evaluation for arm in results.arms)


def _at_several_radii(results: RunFolder) -> list[str]:
    """The attacks that made a curve."""
    return list(dict.fromkeys(name for arm in results.arms if arm.evaluation for name in arm.evaluation.curves))


def _row(results: RunFolder, arm: ArmFolder) -> list[str]:
    evaluation = arm.evaluation
    verdicts = _verdicts(results, arm, evaluation)
    if _has_best(results):
        verdicts += _verdicts(results, arm, arm.best.evaluation)
    curves = evaluation.curves if evaluation else {}
    medians = [str(curves[name].median) if name in curves else "–" for name in _at_several_radii(results)]
    seconds = [f"{arm.outcome.seconds:.1f}", f"{evaluation.cost.seconds:.1f}" if evaluation else "–"]
    return [arm_title([arm]), f"{arm.rate:.4g}", *verdicts, *medians, *seconds]


def _verdicts(results: RunFolder, arm: ArmFolder, evaluation: Evaluation | None) -> list[str]:
    if evaluation:
        return [_percent(evaluation.clean), *map(_percent, evaluation.robust.values())]
    return ["diverged" if arm.problem else "–"] * (1 + len(results.experiment.attacks))


def _percent(accuracy: Accuracy) -> str:
    low, high = accuracy.interval
    return f"{100 * accuracy.value:.1f} ({100 * low:.1f}–{100 * high:.1f})"
