"""The report for programs: one record per experiment, arm and set of images, as CSV or JSON; see docs/tables.md."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, mean
from typing import Any

from excite.evaluation.comparison import PairedDifference
from excite.report.published import PublishedAccuracy
from excite.report.rows import CLEAN, Mean, Summary

FORMAT = 2
FIELDS = (
    *("experiment", "data", "model", "objective", "setting", "epochs", "batch_size", "arm", "title"),
    *("seeds", "evaluated", "diverged", "rate", "rate_low", "rate_high"),
    *("L", "L_low", "L_high", "L_by", "L_identified", "L_trusted"),
    *("images", "number", "accuracy", "deviation", "low", "high"),
    *("difference", "difference_low", "difference_high", "difference_seeds", "mark", "doubted"),
    *("paper", "paper_deviation", "median_eps", "median_eps_deviation", "median_eps_low", "median_eps_high"),
    *("best_accuracy", "best_deviation", "best_difference", "best_difference_low", "best_difference_high"),
    *("rate_per_image", "rate_times_decay", "steps", "steps_after_drop", "final_rate", "final_loss", "train_accuracy"),
)


def marks(summaries: Sequence[Summary]) -> dict[Summary, str]:
    """The arms with the best and the second-best accuracy under each attack of each experiment.

    An arm that diverged or learned nothing with any seed gets no mark: its other seeds may be the lucky ones. If
    several arms share the best accuracy, there is no second; if all are equal, there is no mark at all.
    """
    found: dict[Summary, str] = {}
    for group, images in dict.fromkeys((one.first.group, one.first.images) for one in summaries):
        means = {
            one: accuracy.mean
            for one in summaries
            if images != CLEAN and (one.first.group, one.first.images) == (group, images)
            if (accuracy := one.accuracy()) and not any(row.failed for row in one.rows)
        }
        ranked = sorted(set(means.values()), reverse=True)
        if len(ranked) > 1:
            found |= {one: "best" for one, mean in means.items() if mean == ranked[0]}
            if list(means.values()).count(ranked[0]) == 1:
                found |= {one: "second" for one, mean in means.items() if mean == ranked[1]}
    return found


def records(summaries: Sequence[Summary]) -> Iterator[dict[str, Any]]:
    """The rows of CSV and JSON: numbers in full, accuracies and differences in %. docs/tables.md describes them."""
    marked = marks(summaries)
    for one in summaries:
        row, experiment, estimates = one.first, one.first.group.experiment, one.estimates
        attack = experiment.attacks.get(row.images)  # None if only another experiment of the table ran it
        stated = None
        if one.published and one.published_arm:
            if row.images == CLEAN:
                stated = one.published_arm.clean
            elif attack and one.published.measured_by(attack):
                stated = one.published_arm.robust
        accuracies = [accuracy for each in one.rows if (accuracy := each.accuracy())]
        best, median = one.accuracy(best=True), one.median_radius
        train_accuracy = _mean([each.arm.outcome.train_accuracy for each in one.rows], whole=False)
        yield {
            "experiment": experiment.name,
            "data": experiment.data_set,
            "model": experiment.network,
            "objective": experiment.objective,
            "setting": row.setting,
            "epochs": experiment.training.epochs,
            "batch_size": _mean([each.batch_size for each in one.rows]),
            "arm": row.name,
            "title": one.title,
            "seeds": one.n_seeds,
            "evaluated": one.n_evaluated,
            "diverged": one.n_diverged,
            **_range("rate", [each.arm.rate for each in one.rows]),
            **_range("L", [estimate.constant for estimate in estimates]),
            "L_by": one.method or None,
            "L_identified": all(estimate.identified for estimate in estimates) if estimates else None,
            "L_trusted": one.trusted if estimates else None,
            "images": row.images,
            "number": accuracies[0].total if accuracies else None,
            **_values(one.accuracy(), mean="accuracy", deviation="deviation", low="low", high="high"),
            **_difference("difference", one.difference()),
            "difference_seeds": difference.seeds if (difference := one.difference()) else None,
            "mark": marked.get(one),
            "doubted": one.doubted(),
            **_values(stated, mean="paper", deviation="paper_deviation"),
            **_values(median, mean="median_eps", deviation="median_eps_deviation"),
            **_values(median, low="median_eps_low", high="median_eps_high"),
            **_values(best, mean="best_accuracy", deviation="best_deviation"),
            **_difference("best_difference", one.difference(best=True)),
            "rate_per_image": _mean([each.rate_per_image for each in one.rows], whole=False),
            "rate_times_decay": _mean([each.rate_times_decay for each in one.rows], whole=False),
            "steps": _mean([each.arm.outcome.steps for each in one.rows]),
            "steps_after_drop": _mean([each.steps_after_drop for each in one.rows]),
            "final_rate": _mean([each.final_rate for each in one.rows], whole=False),
            "final_loss": _mean([each.final_loss for each in one.rows], whole=False),
            "train_accuracy": None if train_accuracy is None else 100 * train_accuracy,
        }


def _mean(values: Sequence[float | None], *, whole: bool = True) -> float | None:
    """The mean of the known values; None if none is known. Whole numbers are integers, unless `whole` is False."""
    known = [value for value in values if value is not None]
    average = fmean(known) if known else None
    return int(average) if whole and average is not None and average == int(average) else average


def _range(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The mean, the smallest and the largest value over seeds."""
    if not values:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: mean(values), f"{name}_low": min(values), f"{name}_high": max(values)}


def _values(source: Mean | PublishedAccuracy | None, **fields: str) -> dict[str, float | None]:
    """Attributes of `source` under the names of the record's fields."""
    return {field: getattr(source, attribute, None) for attribute, field in fields.items()}


def _difference(name: str, found: PairedDifference | None) -> dict[str, float | None]:
    low, high = found.interval if found else (None, None)
    values = {name: found.difference if found else None, f"{name}_low": low, f"{name}_high": high}
    return {field: None if value is None else 100 * value for field, value in values.items()}


def as_csv(rows: Iterable[dict[str, Any]]) -> str:
    """A header and a line per record; true and false as in JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()})
    return text.getvalue().rstrip("\n")


def as_json(rows: Iterable[dict[str, Any]], *, verdict: str, notes: Iterable[str]) -> dict[str, Any]:
    """The output of `--json` and `--format json`."""
    return {"format": FORMAT, "verdict": verdict, "rows": list(rows), "notes": list(notes)}
