"""The table for people: a row per experiment and arm, over all seeds and beside the paper's numbers."""

import csv
import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from excite.evaluation.comparison import PairedDifference, holm
from excite.report.estimates import beside, doubted, doubted_together, failed
from excite.report.formats import Cell, latex, markdown, prose, terminal_width, text_table
from excite.report.rows import CLEAN, Mean, PublishedAccuracy, Row, Summary, at_full_scale, summarize, tidy
from excite.report.verdict import Verdict, conclude
from excite.runs.arms import POE, POE_BY_EDGE, arm_named
from excite.runs.folder import FURTHER, RunFolder, Weights

FORMAT = 2  # of the JSON
EMPTY, DAGGER = "–", "†"
WORDS = ("data", "model", "objective", "setting", "arm", "by")  # columns of text
KEYS = ("setting", "arm")  # columns that identify a row
DESCRIPTION = ("data", "model", "objective", "by", "epochs")  # columns that a table of one row does without

MARKED = "Bold and underlined: best and second-best accuracy under each attack, of arms that trained with every seed."
MEDIAN = (
    "Median minimal ε: the radius at which half of the test images are misclassified, interpolated between the radii "
    "tried; mean ± standard deviation over seeds, or a 95% interval for one seed. The accuracy is that at the largest."
)
DIFFERENCE = (
    "Δ: points gained on the baseline, paired by test image and seed, with a 95% interval that covers the variation of "
    "both (with one seed, of the images only)."
)
ADJUSTED_P = "p (Holm)"
ADJUSTED = (
    ADJUSTED_P
    + ": the probability of a difference at least this large under the attack that decides if there is none, "
    "adjusted for the {} comparisons in this table."
)
FURTHER_WEIGHTS = {
    "best": "best: with the weights that were best on held-out training images.",
    "averaged": "averaged: with an exponential moving average of the weights.",
}

Arm = Mapping[str, Summary]  # by images: one arm of one experiment


@dataclass(frozen=True)
class StudyTable:
    """One row per experiment and arm."""

    columns: Mapping[str, Sequence[Cell]]
    arms: Sequence[Arm]
    records: Sequence[dict[str, Any]]
    adjusted: Mapping[Summary, float]  # p-values under the attack that decides
    legend: Sequence[str]  # what the numbers mean
    warnings: Sequence[str]  # what went wrong or cannot be trusted
    verdict: Verdict

    @property
    def notes(self) -> list[str]:
        return [*self.legend, *self.warnings]

    def words(self, title: str) -> bool:
        """Whether a column holds words rather than numbers."""
        return title in WORDS and any(cell.text != EMPTY for cell in self.columns[title])

    def markdown(self) -> str:
        rows = list(zip(*self.columns.values(), strict=True))
        return "\n\n".join([markdown(list(self.columns), rows, words=list(map(self.words, self.columns))), *self.notes])

    def latex(self) -> str:
        """Values that are the same in every row move to the caption."""
        common, shown, keys = self._layout()
        rows = [[self.columns[title][n] for title in shown] for n in range(len(self.arms))]
        names = dict.fromkeys(record["experiment"] for record in self.records)
        caption = " ".join([f"{common}." if common else "", *self.legend]).strip()
        words = list(map(self.words, shown))
        return latex(shown, rows, words=words, keys=keys, caption=caption, label=f"tab:{'-'.join(names)}")

    def csv(self) -> str:
        """A header and a line per record; true and false as in JSON. A spreadsheet takes no text for a formula."""

        def cell(value: object) -> object:
            if isinstance(value, bool):
                return str(value).lower()
            return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value

        keys, text = list(self.records[0]) if self.records else [], io.StringIO()
        rows: list[list[Any]] = [keys, *([record.get(key) for key in keys] for record in self.records)]
        csv.writer(text, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
        return text.getvalue().rstrip("\n")

    def to_json(self) -> dict[str, Any]:
        """The output of `--json` and `--format json`."""
        return {"format": FORMAT, "verdict": str(self.verdict), "rows": list(self.records), "notes": self.notes}

    def text(self, width: int | None = None) -> str:
        """For a terminal: values that are the same in every row move above the table."""
        common, shown, keys = self._layout()
        rows = [[self.columns[title][n].text for title in shown] for n in range(len(self.arms))]
        body = text_table(shown, rows, keys=keys, width=width)
        notes = "\n".join(note for note in self.notes if note != MARKED)
        parts = (prose(common, width or terminal_width()), body, prose(notes, width))
        return "\n\n".join(part for part in parts if part)

    def _layout(self) -> tuple[str, list[str], int]:
        """The values that all rows share, in words; the other columns, key columns first; the number of key columns."""
        texts = {title: [cell.text for cell in cells] for title, cells in self.columns.items()}
        same = [title for title, column in texts.items() if title not in KEYS and len(set(column)) == 1]
        if len(self.arms) == 1:
            same = [title for title in same if title in DESCRIPTION]
        common = " · ".join(f"{title} {texts[title][0]}" for title in same if texts[title][0] != EMPTY)
        keys = [title for title in texts if title in KEYS]
        return common, [*keys, *(title for title in texts if title not in (*keys, *same))], len(keys)

    def __str__(self) -> str:
        return self.text()

    def with_verdict(self) -> str:
        """For a terminal: the table, the verdict, for a single run its L, and the L of other presets."""
        notes, runs = [str(self.verdict)], {row.run for arm in self.arms for row in arm[CLEAN].rows}
        if len(runs) == 1 and (run := runs.pop()).estimate:
            seconds = "" if run.estimate.method == "stated" else f" Estimated in {run.estimate_seconds:.1f} s."
            notes.append(f"{run.estimate}{seconds}")
        groups = dict.fromkeys(arm[CLEAN].first.group for arm in self.arms)
        notes += [sentence for group in groups if (sentence := beside(group.runs[0]))]
        return "\n".join([f"{self}\n", *map(prose, notes)])


def study_table(rows: Sequence[Row]) -> StudyTable:
    """Mean ± standard deviation over seeds, or Wilson's interval for one seed; see the notes below the table."""
    summaries = summarize(rows)
    marks, adjusted = _marks(summaries), _adjusted(summaries)
    by_arm = groupby(summaries, key=lambda summary: (summary.first.group, summary.first.name))
    arms = [{summary.first.images: summary for summary in same} for _, same in by_arm]
    return StudyTable(
        columns=_columns(arms, marks, adjusted),
        arms=arms,
        records=[record(summary, marks.get(summary), adjusted.get(summary)) for summary in summaries],
        adjusted=adjusted,
        legend=list(_legend(arms, len(adjusted))),
        warnings=list(_warnings([arm[CLEAN] for arm in arms])),
        verdict=conclude(rows),
    )


def record(summary: Summary, mark: str | None, adjusted: float | None) -> dict[str, Any]:
    """A row of CSV and JSON: numbers in full, accuracies and differences in %. docs/tables.md describes the fields."""
    row, experiment, estimates = summary.first, summary.first.group.experiment, summary.estimates
    attack = experiment.attacks.get(row.images)  # None if only another experiment of the table ran it
    published = None
    if summary.published and summary.published_arm:
        if row.images == CLEAN:
            published = summary.published_arm.clean
        elif attack and summary.published.measured_by(attack):
            published = summary.published_arm.robust
    accuracies = [accuracy for each in summary.rows if (accuracy := each.accuracy())]
    median, difference = summary.median_radius, summary.difference()
    measured = any(estimate.method != "stated" for estimate in estimates)
    train_accuracy = _mean([each.arm.outcome.train_accuracy for each in summary.rows])
    return {
        "experiment": experiment.name,
        "data": experiment.data_set,
        "model": experiment.network,
        "objective": experiment.objective,
        "setting": row.setting,
        "epochs": experiment.training.epochs,
        "batch_size": _whole(_mean([each.batch_size for each in summary.rows])),
        "arm": row.name,
        "title": summary.title,
        "seeds": summary.n_seeds,
        "evaluated": summary.n_evaluated,
        "diverged": summary.n_diverged,
        **_mean_and_range("rate", [each.arm.rate for each in summary.rows]),
        **_mean_and_range("L", [estimate.constant for estimate in estimates]),
        "L_by": summary.method or None,
        "L_identified": all(estimate.identified for estimate in estimates) if measured else None,
        "L_trusted": summary.trusted if estimates else None,
        "images": row.images,
        "number": accuracies[0].total if accuracies else None,
        **_values(summary.accuracy(), mean="accuracy", deviation="deviation", low="low", high="high"),
        **_difference("difference", difference),
        "difference_seeds": difference.seeds if difference else None,
        "p_value": difference.p_value if difference else None,
        "p_adjusted": adjusted,
        "mark": mark,
        "doubted": summary.doubted(),
        **_values(published, mean="paper", deviation="paper_deviation"),
        **_values(median, mean="median_eps", deviation="median_eps_deviation"),
        **_values(median, low="median_eps_low", high="median_eps_high"),
        **_further_weights(summary),
        "rate_per_image": _mean([each.rate_per_image for each in summary.rows]),
        "rate_times_decay": _mean([each.rate_times_decay for each in summary.rows]),
        "steps": _whole(_mean([each.arm.outcome.steps for each in summary.rows])),
        "steps_after_drop": _whole(_mean([each.steps_after_drop for each in summary.rows])),
        "final_rate": _mean([each.final_rate for each in summary.rows]),
        "final_loss": _mean([each.final_loss for each in summary.rows]),
        "train_accuracy": None if train_accuracy is None else 100 * train_accuracy,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the known values; None if all are unknown."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _whole(value: float | None) -> float | None:
    return int(value) if value is not None and value == int(value) else value


def _mean_and_range(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The mean, the smallest and the largest value over seeds."""
    if not values:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: statistics.mean(values), f"{name}_low": min(values), f"{name}_high": max(values)}


def _values(source: Mean | PublishedAccuracy | None, **fields: str) -> dict[str, float | None]:
    """Attributes of `source` under the names of the record's fields."""
    return {field: getattr(source, attribute, None) for attribute, field in fields.items()}


def _difference(name: str, difference: PairedDifference | None) -> dict[str, float | None]:
    shares = (difference.difference, *difference.interval) if difference else (None,) * 3
    fields = (name, f"{name}_low", f"{name}_high")
    return {field: None if share is None else 100 * share for field, share in zip(fields, shares, strict=True)}


def _further_weights(summary: Summary) -> dict[str, float | None]:
    fields: dict[str, float | None] = {}
    for weights in FURTHER:
        fields |= _values(summary.accuracy(weights), mean=f"{weights}_accuracy", deviation=f"{weights}_deviation")
        fields |= _difference(f"{weights}_difference", summary.difference(weights))
    return fields


def _marks(summaries: Sequence[Summary]) -> dict[Summary, str]:
    """The arms with the best and the second-best accuracy under each attack of each experiment.

    An arm that diverged or learned nothing with any seed gets no mark: its other seeds may be the lucky ones. If
    several arms share the best accuracy, there is no second; if all are equal, there is no mark at all.
    """
    means: dict[tuple[Any, str], dict[Summary, float]] = {}  # by experiment and attack
    for summary in summaries:
        if (
            summary.first.images != CLEAN
            and (accuracy := summary.accuracy())
            and not any(failed(row.arm) for row in summary.rows)
        ):
            means.setdefault((summary.first.group, summary.first.images), {})[summary] = accuracy.mean
    marks: dict[Summary, str] = {}
    for compared in means.values():
        best, *lower = sorted(compared.values(), reverse=True)
        if best != min(compared.values()):
            names = {best: "best"} if best in lower else {best: "best", lower[0]: "second"}
            marks |= {summary: names[mean] for summary, mean in compared.items() if mean in names}
    return marks


def _adjusted(summaries: Sequence[Summary]) -> dict[Summary, float]:
    """The adjusted p-value of each arm but controls, under the attack that decides."""
    compared = {
        summary: difference.p_value
        for summary in summaries
        if summary.first.images == summary.first.group.experiment.deciding
        and not summary.first.arm.arm.control
        and (difference := summary.difference())
    }
    return dict(zip(compared, holm(list(compared.values())), strict=True))


def _columns(
    arms: Sequence[Arm], marked: Mapping[Summary, str], adjusted: Mapping[Summary, float]
) -> dict[str, list[Cell]]:
    """A column is left out where it would say nothing: the objective, settings, medians, the paper's numbers …"""
    clean = [arm[CLEAN] for arm in arms]
    images = list(arms[0]) if arms else [CLEAN]
    experiments = [summary.first.group.experiment for summary in clean]
    texts = {
        "data": [experiment.data_set for experiment in experiments],
        "model": [experiment.network for experiment in experiments],
    }
    if not all(experiment.trains_plainly for experiment in experiments):
        texts["objective"] = [experiment.objective for experiment in experiments]
    if any(summary.first.setting for summary in clean):
        texts["setting"] = [summary.first.setting or EMPTY for summary in clean]
    texts |= {
        "arm": [summary.title for summary in clean],
        "seeds": [_seeds(summary) for summary in clean],
        "rate η¹": [_range([row.arm.rate for row in summary.rows]) for summary in clean],
        "L": [_constant(summary) for summary in clean],
        "by": [summary.method or EMPTY for summary in clean],
        "epochs": [f"{experiment.training.epochs}" for experiment in experiments],
        "batch": [_range([row.batch_size for row in summary.rows]) for summary in clean],
    }
    columns = {title: [Cell(text) for text in column] for title, column in texts.items()}
    columns |= {f"{on} %": [Cell(accuracy_text(arm[on]), marked.get(arm[on])) for arm in arms] for on in images}
    further = {f"median minimal ε, {on}": [_median(arm[on]) for arm in arms] for on in images}
    further = {title: column for title, column in further.items() if set(column) - {EMPTY}}
    further |= {f"Δ {on}": [difference_text(arm[on]) for arm in arms] for on in images}
    if adjusted:
        by_arm = [[adjusted[summary] for summary in arm.values() if summary in adjusted] for arm in arms]
        further[ADJUSTED_P] = [f"{p_values[0]:.2g}" if p_values else EMPTY for p_values in by_arm]
    for weights in _shown_weights(clean):
        further |= {f"{weights}: {on} %": [accuracy_text(arm[on], weights) for arm in arms] for on in images}
        further |= {f"{weights}: Δ {on}": [difference_text(arm[on], weights) for arm in arms] for on in images}
    stated = [summary.published_arm for summary in clean]
    if any(stated):
        further |= {
            "paper: clean %": [str(arm.clean) if arm else EMPTY for arm in stated],
            "paper: robust %": [str(arm.robust) if arm else EMPTY for arm in stated],
            "paper: L, (M, N), epochs, batch": [_published_settings(summary) for summary in clean],
        }
    if any(arm and arm.logged for arm in stated):
        logs = [arm.logged if arm else None for arm in stated]
        further["released log: clean / robust %"] = ["{:.2f} / {:.2f}".format(*log) if log else EMPTY for log in logs]
    return columns | {title: [Cell(text) for text in column] for title, column in further.items()}


def _shown_weights(clean: Sequence[Summary]) -> list[Weights]:
    return [weights for weights in FURTHER if any(summary.accuracy(weights) for summary in clean)]


def _range(values: Sequence[float]) -> str:
    """The mean over seeds and, if they differ, the smallest and largest value."""
    mean, low, high = statistics.mean(values), min(values), max(values)
    return f"{mean:.4g}" if high - low <= 1e-9 * high else f"{mean:.3g} ({low:.3g}–{high:.3g})"


def _seeds(summary: Summary) -> str:
    text = (
        f"{summary.n_seeds}"
        if summary.n_evaluated == summary.n_seeds
        else f"{summary.n_evaluated} of {summary.n_seeds}"
    )
    return f"{text} ({summary.n_diverged} diverged)" if summary.n_diverged else text


def _constant(summary: Summary) -> str:
    if not summary.estimates:
        return EMPTY
    return _range([estimate.constant for estimate in summary.estimates]) + ("" if summary.trusted else " ?")


def accuracy_text(summary: Summary, weights: Weights = "last") -> str:
    accuracy, dagger = summary.accuracy(weights), f" {DAGGER}" if summary.doubted(weights) else ""
    if accuracy is None:
        return "diverged" if summary.n_diverged else EMPTY
    if accuracy.deviation is None:
        return f"{accuracy.mean:.2f} ({accuracy.low:.2f}–{accuracy.high:.2f}){dagger}"
    return f"{accuracy.mean:.2f} ± {accuracy.deviation:.2f}{dagger}"


def _median(summary: Summary) -> str:
    medians = summary.medians
    if len(medians) < 2:
        return str(medians[0]) if medians else EMPTY
    words, radii, mean = medians[0].words, [median.value for median in medians], summary.median_radius
    if mean is None or mean.deviation is None:
        return f"{words(math.inf)} at {radii.count(math.inf)} of {len(radii)} seeds"
    return f"{words(mean.mean)} ± {words(mean.deviation)}"


def difference_text(summary: Summary, weights: Weights = "last") -> str:
    paired = summary.difference(weights)
    if paired is None:
        return EMPTY
    difference, low, high = (100 * number for number in (paired.difference, *paired.interval))
    seeds = f" at {paired.seeds} of {summary.n_seeds} seeds" if paired.seeds < summary.n_seeds else ""
    return f"{difference:+.2f} ({low:+.2f} to {high:+.2f}){seeds}".replace("-", "−")


def _published_settings(summary: Summary) -> str:
    row = summary.published
    if row is None or summary.published_arm is None:
        return EMPTY
    return f"{row.constant:g}, ({row.n_maxima}, {row.n_points}), {row.epochs}, {row.batch_size}"


def _legend(arms: Sequence[Arm], n_compared: int) -> Iterator[str]:
    clean = [arm[CLEAN] for arm in arms]
    if any(summary.n_evaluated > 1 for summary in clean):
        yield "Accuracies in %: mean ± standard deviation over seeds (one seed: Wilson's 95% interval in brackets)."
    else:
        yield "Accuracies in %, with Wilson's 95% interval for the choice of test images; one training per arm."
    yield MARKED
    if any(summary.medians for arm in arms for summary in arm.values()):
        yield MEDIAN
    yield DIFFERENCE
    if n_compared:
        yield ADJUSTED.format(n_compared)
    yield from (FURTHER_WEIGHTS[weights] for weights in _shown_weights(clean))
    if any(summary.estimates and not summary.trusted for summary in clean):
        yield "L with a question mark: the data do not identify it, or trainings contradict it."
    published = [(summary.published, summary.first.group.experiment.name) for summary in clean if summary.published]
    yield from dict.fromkeys(f"Paper: Table {row.table}, {row.attack}, 5 seeds." for row, _ in published)
    small = dict.fromkeys(name for _, name in published if at_full_scale(name) != name)
    if small:
        yield f"{', '.join(small)}: smaller than in the paper, so its numbers are shown for orientation only."
    if any(arm_named(summary.first.name).multiple for summary in clean):
        edge = any(estimate.method == "edge" for summary in clean for estimate in summary.estimates)
        yield f"{POE} {POE_BY_EDGE}" if edge else POE
    if any(row.arm.doubts for summary in clean for row in summary.rows):
        yield f"{DAGGER}: trust checks warn that the true accuracy may be lower."


def _warnings(arms: Sequence[Summary]) -> Iterator[str]:
    titles = {summary: f"{summary.first.group.experiment.network}, {summary.title}" for summary in arms}
    for summary in arms:
        doubts = dict.fromkeys(doubt for row in summary.rows for doubt in row.arm.doubts)
        yield from (f"{titles[summary]}{weights}, do not trust this yet: {flag}" for weights, flag in doubts)
    for group in dict.fromkeys(summary.first.group for summary in arms):
        network = group.experiment.network
        for run in group.runs:
            who = f"{network}, seed {run.experiment.seed}"
            yield from (f"{who}, {L} is in doubt: {why}." for L, why in doubted(run).items())
        yield from (f"{network}, {L} is in doubt: {why}." for L, why in doubted_together(group.runs).items())
    for summary in arms:
        yield from dict.fromkeys(f"{titles[summary]}: {row.arm.problem}" for row in summary.rows if row.arm.problem)


def table(run: RunFolder) -> str:
    """The table of one run with its verdict and L."""
    return study_table(tidy([run])).with_verdict()
