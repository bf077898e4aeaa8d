"""A table for machines: one record per arm and set of images, with the same fields whatever the content."""

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

FORMAT = 2


@dataclass(frozen=True)
class TableRecord:
    """Accuracies and differences in %; None (an empty cell) where there is nothing. Described in docs/tables.md."""

    experiment: str
    data: str
    model: str
    objective: str
    setting: str  # what else sets it apart from the table's other experiments
    epochs: int
    batch_size: float  # B, mean over seeds
    arm: str
    title: str
    seeds: int  # runs of this experiment
    evaluated: int  # of them, those in which this arm was attacked
    diverged: int
    rate: float  # η¹, mean over seeds
    rate_low: float
    rate_high: float
    L: float | None
    L_low: float | None  # least over seeds
    L_high: float | None
    L_by: str | None
    L_identified: bool | None
    L_trusted: bool | None
    images: str  # "clean", or the attack's name
    number: int | None  # of test images
    accuracy: float | None  # mean over seeds
    deviation: float | None  # over seeds; None for one
    low: float | None  # Wilson's 95% interval; None for several seeds
    high: float | None
    difference: float | None  # to the baseline, of the seeds at which both are there
    difference_low: float | None  # 95%
    difference_high: float | None
    difference_seeds: int | None
    mark: str | None  # best, second
    doubted: bool  # whether a trust check warns
    paper: float | None  # accuracy in the paper's table
    paper_deviation: float | None
    median_eps: float | None  # of an attack at several radii, mean over seeds; None where less than half fell
    median_eps_deviation: float | None  # over seeds; None for one
    median_eps_low: float | None  # 95%; None for several seeds
    median_eps_high: float | None
    best_accuracy: float | None  # with the weights that stood best on held-out images
    best_deviation: float | None
    best_difference: float | None  # to the baseline's best weights
    best_difference_low: float | None
    best_difference_high: float | None
    rate_per_image: float  # η¹/B, here and below: means over seeds
    rate_times_decay: float  # η¹·λ
    steps: float | None
    steps_after_drop: float | None  # past the schedule's last drop
    final_rate: float | None
    final_loss: float | None
    train_accuracy: float | None  # %


FIELDS = tuple(field.name for field in fields(TableRecord))


def as_csv(records: Iterable[TableRecord]) -> str:
    """A header and a line per record; numbers in full, true and false as JSON writes them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    for record in records:
        plain = asdict(record)
        writer.writerow(
            {name: str(value).lower() if isinstance(value, bool) else value for name, value in plain.items()}
        )
    return text.getvalue().rstrip("\n")


def as_json(records: Iterable[TableRecord], *, verdict: str, notes: Iterable[str]) -> dict[str, Any]:
    """What `--json` and `--format json` print."""
    return {
        "format": FORMAT,
        "verdict": verdict,
        "rows": [asdict(record) for record in records],
        "notes": list(notes),
    }
