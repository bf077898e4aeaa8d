"""The table for people: a row per experiment and arm, over all seeds and beside the paper's numbers."""

import csv
import io
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from excite import html
from excite.evaluation.comparison import holm
from excite.report.estimates import beside
from excite.report.formats import Mark, latex, markdown, prose, terminal_width, text_table
from excite.report.rows import CLEAN, Row, at_full_scale, published_row, tidy, train_accuracy
from excite.report.verdict import Result, conclude, results
from excite.runs.arms import POE, POE_BY_EDGE
from excite.runs.folder import FURTHER, RunFolder, Weights

FORMAT = 3  # of the JSON
EMPTY, DAGGER = "–", "†"
WORDS = ("data", "model", "objective", "setting", "arm", "by")  # columns of text
KEYS = ("setting", "arm")  # columns that identify a row
DESCRIPTION = ("data", "model", "objective", "by", "epochs")  # columns that a table of one row does without

MARKED = "Bold: best accuracy under each attack. Underlined: second best. Arms that failed with any seed have no mark."
DIFFERENCE = (
    "Δ: gain over the baseline in percentage points, paired by test image and seed. Its 95% interval covers the "
    "variation of both (one seed: of the images only)."
)
ADJUSTED_P = "p (Holm)"
ADJUSTED = ADJUSTED_P + ": p-value of Δ under the attack that decides, adjusted for the number of comparisons ({})."
Arm = Mapping[str, Result]  # by images: one row of the table
FURTHER_WEIGHTS = {
    "best": "best: with the weights that were best on held-out training images.",
    "averaged": "averaged: with an exponential moving average of the weights.",
}


class StudyTable:
    """One row per experiment and arm: mean ± standard deviation over seeds, or Wilson's interval for one seed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        every = results(rows)
        self.adjusted = _adjusted(every)  # p-values under the attack that decides
        self.arms: list[Arm] = [
            {result.images: result for result in of_arm}
            for _, of_arm in groupby(every, key=lambda result: (result.runs, result.name))
        ]
        self.columns = _columns(self.arms, self.adjusted)
        self.marks = _marks(self.arms)
        self.records = [record(result, self.adjusted.get(result)) for result in every]
        self.legend = list(_legend(self.arms, len(self.adjusted)))  # what the numbers mean
        self.warnings = list(_warnings([arm[CLEAN] for arm in self.arms]))  # what went wrong or cannot be trusted
        self.verdict = conclude(rows)

    @property
    def notes(self) -> list[str]:
        return [*self.legend, *self.warnings]

    def words(self, title: str) -> bool:
        """Whether a column holds words rather than numbers."""
        return title in WORDS and any(text != EMPTY for text in self.columns[title])

    def markdown(self) -> str:
        rows = list(zip(*self.columns.values(), strict=True))
        table = markdown(list(self.columns), rows, list(map(self.words, self.columns)), self.marks)
        return "\n\n".join([table, MARKED, *self.notes])

    def latex(self) -> str:
        """Values that are the same in every row move to the caption."""
        common, shown, _ = self._layout()
        rows = [[self.columns[title][n] for title in shown] for n in range(len(self.arms))]
        names = dict.fromkeys(record["experiment"] for record in self.records)
        caption = " ".join([f"{common}." if common else "", MARKED, *self.legend]).strip()
        words, label = list(map(self.words, shown)), f"tab:{'-'.join(names)}"
        return latex(shown, rows, words, self.marks, caption=caption, label=label)

    def csv(self) -> str:
        """A header and a line per record; true and false as in JSON. A spreadsheet takes no text for a formula."""

        def cell(value: object) -> object:
            if isinstance(value, bool):
                return str(value).lower()
            return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value

        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.records[0]) if self.records else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: cell(value) for name, value in record.items()} for record in self.records)
        return text.getvalue().rstrip("\n")

    def to_json(self) -> dict[str, Any]:
        """The output of `--json` and `--format json`."""
        return {"format": FORMAT, "verdict": str(self.verdict), "rows": list(self.records), "notes": self.notes}

    def _repr_html_(self) -> str:
        rows = zip(*self.columns.values(), strict=True)
        return html.table(list(self.columns), rows, [str(self.verdict), *self.notes])

    def text(self, width: int | None = None) -> str:
        """For a terminal: values that are the same in every row move above the table."""
        common, shown, keys = self._layout()
        rows = [[self.columns[title][n] for title in shown] for n in range(len(self.arms))]
        body = text_table(shown, rows, keys=keys, width=width)
        parts = (prose(common, width or terminal_width()), body, prose("\n".join(self.notes), width))
        return "\n\n".join(part for part in parts if part)

    def _layout(self) -> tuple[str, list[str], int]:
        """The values that all rows share, in words; the other columns, key columns first; the number of key columns."""
        columns = self.columns
        same = [title for title, texts in columns.items() if title not in KEYS and len(set(texts)) == 1]
        if len(self.arms) == 1:
            same = [title for title in same if title in DESCRIPTION]
        common = " · ".join(f"{title} {columns[title][0]}" for title in same if columns[title][0] != EMPTY)
        keys = [title for title in columns if title in KEYS]
        return common, [*keys, *(title for title in columns if title not in (*keys, *same))], len(keys)

    def with_verdict(self) -> str:
        """For a terminal: the table, the verdict, for a single run its L, and the L of other presets."""
        notes, runs = [str(self.verdict)], {row.run for arm in self.arms for row in arm[CLEAN].rows}
        if len(runs) == 1 and (run := runs.pop()).estimate:
            notes.append(str(run.estimate))
        groups = dict.fromkeys(arm[CLEAN].runs for arm in self.arms)
        notes += [sentence for group in groups if (sentence := beside(group[0]))]
        return "\n".join([f"{self.text()}\n", *map(prose, notes)])


def record(result: Result, adjusted: float | None) -> dict[str, Any]:
    """A row of CSV and JSON: numbers in full, accuracies and differences in %. docs/tables.md describes the fields."""
    row, experiment, estimates = result.rows[0], result.experiment, result.estimates
    attack = experiment.attacks.get(result.images)  # None if only another experiment of the table ran it
    published, stated = published_row(experiment), None
    if published and (arm := published.arms.get(result.name)):
        is_robust = attack is not None and published.measured_by(attack)
        stated = arm.clean if result.images == CLEAN else arm.robust if is_robust else None
    accuracies = [accuracy for each in result.rows if (accuracy := each.accuracy(result.images))]
    difference = result.difference
    steps = [each.arm.outcome.steps for each in result.rows if each.arm.outcome.steps is not None]
    measured = any(estimate.method != "stated" for estimate in estimates)
    fitted = train_accuracy(result.rows)
    return {
        "experiment": experiment.name,
        "data": experiment.data_set,
        "model": experiment.network,
        "objective": experiment.objective,
        "setting": row.setting,
        "epochs": experiment.training.epochs,
        "batch_size": statistics.mean(each.batch_size for each in result.rows),
        "arm": result.name,
        "title": result.title,
        "seeds": len(result.runs),
        "evaluated": result.n_evaluated,
        "diverged": result.n_diverged,
        "rate": statistics.mean(each.arm.rate for each in result.rows),
        "L": statistics.mean(estimate.constant for estimate in estimates) if estimates else None,
        "L_by": result.method or None,
        "L_identified": all(estimate.identified for estimate in estimates) if measured else None,
        "L_trusted": result.trusted if estimates else None,
        "images": result.images,
        "number": accuracies[0].total if accuracies else None,
        **_measured("", result),
        "difference_seeds": difference.seeds if difference else None,
        "p_value": difference.p_value if difference else None,
        "p_adjusted": adjusted,
        "doubted": result.doubted,
        "paper": stated[0] if stated else None,
        "paper_deviation": stated[1] if stated else None,
        **_measured("best_", result.at("best")),
        **_measured("averaged_", result.at("averaged")),
        "steps": statistics.mean(steps) if steps else None,
        "train_accuracy": None if fitted is None else 100 * fitted,
    }


def _measured(prefix: str, result: Result) -> dict[str, float | None]:
    """The accuracy and the gain on the baseline with some weights, each with its interval."""
    accuracy, paired = result.accuracy, result.difference
    names = ("accuracy", "deviation", "low", "high", "difference", "difference_low", "difference_high")
    values = accuracy or (None,) * 4
    gained = [100 * share for share in (paired.difference, *paired.interval)] if paired else [None] * 3
    return {f"{prefix}{name}": value for name, value in zip(names, (*values, *gained), strict=True)}


def _marks(arms: Sequence[Arm]) -> dict[tuple[int, str], Mark]:
    """The cells with the best and the second-best accuracy under each attack of each experiment.

    An arm that diverged or learned nothing with any seed gets no mark: its other seeds may be the lucky ones. If
    several arms share the best accuracy, there is no second; if all are equal, there is no mark at all.
    """
    means: dict[tuple[Any, str], dict[int, float]] = {}  # by experiment and attack
    for n, arm in enumerate(arms):
        for images, result in arm.items():
            failed = any(row.arm.failed for row in result.rows)
            if images != CLEAN and not failed and (accuracy := result.accuracy):
                means.setdefault((result.runs, images), {})[n] = accuracy.mean
    marks: dict[tuple[int, str], Mark] = {}
    for (_, images), compared in means.items():
        best, *lower = sorted(compared.values(), reverse=True)
        if best != min(compared.values()):
            names: dict[float, Mark] = {best: "best"} if best in lower else {best: "best", lower[0]: "second"}
            marks |= {(n, f"{images} %"): names[mean] for n, mean in compared.items() if mean in names}
    return marks


def _adjusted(every: Sequence[Result]) -> dict[Result, float]:
    """The adjusted p-value of each arm but controls, under the attack that decides."""
    compared = {
        result: difference.p_value
        for result in every
        if result.images == result.experiment.deciding and not result.arm.control and (difference := result.difference)
    }
    return dict(zip(compared, holm(list(compared.values())), strict=True)) if compared else {}


def _columns(arms: Sequence[Arm], adjusted: Mapping[Result, float]) -> dict[str, list[str]]:
    """A column is left out where it would say nothing: the objective, settings, medians, the paper's numbers …"""
    clean = [arm[CLEAN] for arm in arms]
    images = list(arms[0]) if arms else [CLEAN]
    experiments = [result.experiment for result in clean]
    columns = {
        "data": [experiment.data_set for experiment in experiments],
        "model": [experiment.network for experiment in experiments],
    }
    if not all(experiment.trains_plainly for experiment in experiments):
        columns["objective"] = [experiment.objective for experiment in experiments]
    if any(result.rows[0].setting for result in clean):
        columns["setting"] = [result.rows[0].setting or EMPTY for result in clean]
    columns |= {
        "arm": [result.title for result in clean],
        "seeds": [_seeds(result) for result in clean],
        "rate η¹": [_range([row.arm.rate for row in result.rows]) for result in clean],
        "L": [_constant(result) for result in clean],
        "by": [result.method or EMPTY for result in clean],
        "epochs": [f"{experiment.training.epochs}" for experiment in experiments],
        "batch": [_range([row.batch_size for row in result.rows]) for result in clean],
    }
    columns |= {f"{on} %": [accuracy_text(arm[on]) for arm in arms] for on in images}
    columns |= {f"Δ {on}": [difference_text(arm[on]) for arm in arms] for on in images}
    if adjusted:
        by_arm = [[adjusted[result] for result in arm.values() if result in adjusted] for arm in arms]
        columns[ADJUSTED_P] = [f"{p_values[0]:.2g}" if p_values else EMPTY for p_values in by_arm]
    for weights in _shown_weights(clean):
        columns |= {f"{weights}: {on} %": [accuracy_text(arm[on].at(weights)) for arm in arms] for on in images}
        columns |= {f"{weights}: Δ {on}": [difference_text(arm[on].at(weights)) for arm in arms] for on in images}
    published = [published_row(experiment) for experiment in experiments]
    stated = [row and row.arms.get(result.name) for row, result in zip(published, clean, strict=True)]
    if any(stated):
        columns |= {
            "paper: clean %": ["{:.2f} ± {:.2f}".format(*arm.clean) if arm else EMPTY for arm in stated],
            "paper: robust %": ["{:.2f} ± {:.2f}".format(*arm.robust) if arm else EMPTY for arm in stated],
            "paper: L, (M, N), epochs, batch": [
                str(row) if arm else EMPTY for row, arm in zip(published, stated, strict=True)
            ],
        }
    return columns


def _shown_weights(clean: Sequence[Result]) -> list[Weights]:
    return [weights for weights in FURTHER if any(result.at(weights).accuracy for result in clean)]


def _range(values: Sequence[float]) -> str:
    """The mean over seeds and, if they differ, the smallest and largest value."""
    mean, low, high = statistics.mean(values), min(values), max(values)
    return f"{mean:.4g}" if high - low <= 1e-9 * high else f"{mean:.3g} ({low:.3g}–{high:.3g})"


def _seeds(result: Result) -> str:
    n = len(result.runs)
    text = f"{n}" if result.n_evaluated == n else f"{result.n_evaluated} of {n}"
    return f"{text} ({result.n_diverged} diverged)" if result.n_diverged else text


def _constant(result: Result) -> str:
    if not result.estimates:
        return EMPTY
    return _range([estimate.constant for estimate in result.estimates]) + ("" if result.trusted else " ?")


def accuracy_text(result: Result) -> str:
    accuracy, dagger = result.accuracy, f" {DAGGER}" if result.doubted else ""
    if accuracy is None:
        return "diverged" if result.n_diverged else EMPTY
    if accuracy.deviation is None:
        return f"{accuracy.mean:.2f} ({accuracy.low:.2f}–{accuracy.high:.2f}){dagger}"
    return f"{accuracy.mean:.2f} ± {accuracy.deviation:.2f}{dagger}"


def difference_text(result: Result) -> str:
    paired = result.difference
    if paired is None:
        return EMPTY
    difference, low, high = (100 * number for number in (paired.difference, *paired.interval))
    seeds = f" at {paired.seeds} of {len(result.runs)} seeds" if paired.seeds < len(result.runs) else ""
    return f"{difference:+.2f} ({low:+.2f} to {high:+.2f}){seeds}".replace("-", "−")


def _legend(arms: Sequence[Arm], n_compared: int) -> Iterator[str]:
    clean = [arm[CLEAN] for arm in arms]
    yield "Accuracies in %: mean ± standard deviation over seeds (one seed: Wilson's 95% interval in brackets)."
    yield DIFFERENCE
    if n_compared:
        yield ADJUSTED.format(n_compared)
    yield from (FURTHER_WEIGHTS[weights] for weights in _shown_weights(clean))
    if any(result.estimates and not result.trusted for result in clean):
        yield "L with a question mark: the data do not identify it, or trainings contradict it."
    experiments = [result.experiment for result in clean]
    published = [(row, experiment.name) for experiment in experiments if (row := published_row(experiment))]
    yield from dict.fromkeys(f"Paper: Table {row.table}, {row.attack}, 5 seeds." for row, _ in published)
    small = dict.fromkeys(name for _, name in published if at_full_scale(name) != name)
    if small:
        yield f"{', '.join(small)}: smaller than in the paper, so its numbers are shown for orientation only."
    if any(result.arm.multiple for result in clean):
        edge = any(estimate.method == "edge" for result in clean for estimate in result.estimates)
        yield f"{POE} {POE_BY_EDGE}" if edge else POE
    if any(row.arm.doubts for result in clean for row in result.rows):
        yield f"{DAGGER}: trust checks warn that the true accuracy may be lower."


def _warnings(arms: Sequence[Result]) -> Iterator[str]:
    for result in arms:
        title = f"{result.experiment.network}, {result.title}"
        doubts = dict.fromkeys(doubt for row in result.rows for doubt in row.arm.doubts)
        yield from (f"{title}{weights}, do not trust this yet: {flag}" for weights, flag in doubts)
        yield from dict.fromkeys(f"{title}: {row.arm.problem}" for row in result.rows if row.arm.problem)


def table(run: RunFolder) -> str:
    """The table of one run with its verdict and L."""
    return StudyTable(tidy([run])).with_verdict()
