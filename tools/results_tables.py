"""Write the tables of results in docs/lab from the runs in results/, so that none is typed by hand.

    python tools/results_tables.py

A table stands between `<!-- results/NAME -->` and `<!-- end -->`. It is made from the runs in that folder, under the
attack that decides. After `<!-- results/NAME: ARM against the others -->` it shows what ARM gains on each other arm.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from excite.evaluation.comparison import paired_difference
from excite.files import write_text
from excite.report.findings import signed
from excite.report.tables.formats import Cell
from excite.report.tables.study_columns import NOTHING, StudyArm, arms_of, columns_for, evaluations_of, paired
from excite.report.trainings import Confounders, mean_of
from excite.runs.collection import Group, by_seed, collect

HOME = Path(__file__).parents[1]
PAGES = sorted((HOME / "docs/lab").glob("*-length.md"))
BLOCK = re.compile(r"(<!-- (results/[\w./-]+)(?:: (\S+) against the others)? -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """`text` with every table as the runs of its folder have it."""
    return BLOCK.sub(_written, text)


def _written(block: re.Match[str]) -> str:
    (group,) = by_seed(collect([HOME / block[2]]))
    return f"{block[1]}{against_the_others(group, block[3]) if block[3] else table(group)}\n{block[4]}"


def table(group: Group) -> str:
    """A row per arm, over its seeds, under the attack that decides."""
    arms = arms_of(group, "")
    decides = group.experiment.deciding
    cells = {column.path: cell for column, cell in columns_for(arms).items()}
    columns: dict[str, Callable[[StudyArm], Cell]] = {
        "arm": cells["arm",],
        "rate η¹": cells["rate",],
        "batch": cells["batch",],
        "η¹/B": lambda arm: _mean(arm, lambda one: one.rate_per_image, "{:.1e}"),
        "seeds": cells["seeds",],
        "training %": lambda arm: _mean(arm, lambda one: one.train_accuracy, "{:.1%}"),
        "clean %": cells["clean",],
        f"{decides} %": cells["robust", decides],
        "points gained": cells["difference", decides],
    }
    if ("best", decides) in cells:
        columns["best weights: %"] = cells["best", decides]
        columns["points gained with them"] = cells["best_difference", decides]
    columns |= {f"median minimal ε, {path[1]}": cell for path, cell in cells.items() if path[0] == "median"}
    return _lines(list(columns), [[cell(arm).text for cell in columns.values()] for arm in arms])


def against_the_others(group: Group, name: str) -> str:
    """What an arm gains on each of the others, in points: over seeds, and at each of them."""
    rows = []
    for other in (arm for arm in group.arm_names if arm != name):
        cells = [group.arms(other)[0].title]
        for on in (group.experiment.deciding, "clean"):
            pairs = paired(evaluations_of(group, other), evaluations_of(group, name), on)
            if not pairs:
                cells += ["–", "–"]
                continue
            mean = paired_difference(list(pairs.values()), on)
            low, high = map(signed, mean.interval)
            each = (signed(paired_difference([pair], on).difference) for pair in pairs.values())
            cells += [f"{signed(mean.difference)} ({low} to {high})", ", ".join(each)]
        rows.append(cells)
    headings = [part for on in (group.experiment.deciding, "clean") for part in (on, f"{on}, by seed")]
    return _lines([f"{group.arms(name)[0].short_title} gains on", *headings], rows)


def _lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = [":--", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def _mean(arm: StudyArm, of: Callable[[Confounders], float | None], words: str) -> Cell:
    value = of(mean_of(arm.confounders))
    return NOTHING if value is None else Cell(words.format(value).removesuffix("%"), value)


if __name__ == "__main__":
    for file in PAGES:
        write_text(file, page(file.read_text(encoding="utf-8")))
