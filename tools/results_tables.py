"""Write the tables of docs/results.md from the runs in results/: no figure in them is typed.

    python tools/results_tables.py

A table stands between `<!-- results/NAME -->` and `<!-- end -->`. It is made again from the runs in that folder, under
the attack that decides.
"""

import re
from collections.abc import Callable
from pathlib import Path

from excite.files import write_text
from excite.report.tables.formats import Cell
from excite.report.tables.study_columns import NOTHING, StudyArm, arms_of, columns_for
from excite.report.trainings import Confounders, mean_of
from excite.runs.collection import by_seed, collect

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs/results.md"
BLOCK = re.compile(r"(<!-- (results/[\w./-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """`text` with every table as the runs of its folder have it."""
    return BLOCK.sub(lambda block: f"{block[1]}{table(HOME / block[2])}\n{block[3]}", text)


def table(folder: Path) -> str:
    """A row per arm, over its seeds, under the attack that decides."""
    (group,) = by_seed(collect([folder]))
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
    rows = [list(columns), [":--", *["--:"] * (len(columns) - 1)]]
    rows += [[cell(arm).text for cell in columns.values()] for arm in arms]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mean(arm: StudyArm, of: Callable[[Confounders], float | None], words: str) -> Cell:
    value = of(mean_of(arm.confounders))
    return NOTHING if value is None else Cell(words.format(value).removesuffix("%"), value)


if __name__ == "__main__":
    write_text(PAGE, page(PAGE.read_text(encoding="utf-8")))
