"""Write the tables of results in docs/lab from the runs in results/, so that none is typed by hand.

    python tools/results_tables.py

A table stands between `<!-- results/NAME -->` and `<!-- end -->`. It is made from the runs in that folder, under the
attack that decides. After `<!-- results/NAME: ARM against the others -->` it shows what ARM gains on each other arm.
"""

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path
from statistics import fmean, mean, stdev

from excite.evaluation.comparison import paired_difference
from excite.evaluation.result import MedianRadius
from excite.files import write_text
from excite.report.formats import points
from excite.report.rows import CLEAN, Row, by_arm, tidy, train_accuracy
from excite.report.tables import EMPTY, StudyTable
from excite.report.verdict import Result
from excite.runs.folder import collect

HOME = Path(__file__).parents[1]
PAGES = sorted((HOME / "docs/lab").glob("*-length.md"))
BLOCK = re.compile(r"(<!-- (results/[\w./-]+)(?:: (\S+) against the others)? -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """`text` with every table computed again from the runs of its folder."""
    return BLOCK.sub(_block, text)


def _block(block: re.Match[str]) -> str:
    rows = tidy(collect([HOME / block[2]]))
    return f"{block[1]}{against_the_others(rows, block[3]) if block[3] else table(rows)}\n{block[4]}"


def table(rows: Sequence[Row]) -> str:
    """A row per arm of one experiment, under the attack that decides."""
    study = StudyTable(rows)
    decides = rows[0].experiment.deciding
    columns = study.columns
    arms = [arm[CLEAN].rows for arm in study.arms]
    shown = {
        "arm": columns["arm"],
        "rate η¹": columns["rate η¹"],
        "batch": columns["batch"],
        "η¹/B": [f"{fmean(row.arm.rate / row.batch_size for row in seeds):.1e}" for seeds in arms],
        "seeds": columns["seeds"],
        "training %": [_train_accuracy(seeds) for seeds in arms],
        "clean %": columns["clean %"],
        f"{decides} %": columns[f"{decides} %"],
        "points gained": columns[f"Δ {decides}"],
    }
    if f"best: {decides} %" in columns:
        shown["best weights: %"] = columns[f"best: {decides} %"]
        shown["points gained with them"] = columns[f"best: Δ {decides}"]
    for on in dict.fromkeys(on for row in rows for on in row.curves):
        medians = [[row.curves[on].median for row in seeds if on in row.curves] for seeds in arms]
        shown[f"median minimal ε, {on}"] = list(map(_median, medians))
    return _lines(list(shown), list(zip(*shown.values(), strict=True)))


def _median(medians: Sequence[MedianRadius]) -> str:
    """The radius at which half of the test images are misclassified, with its deviation over seeds."""
    words, radii = medians[0].words, [median.value for median in medians]
    if inf in radii:
        return f"{words(inf)} at {radii.count(inf)} of {len(radii)} seeds"
    return f"{words(mean(radii))} ± {words(stdev(radii))}"


def _train_accuracy(rows: Sequence[Row]) -> str:
    share = train_accuracy(rows)
    return EMPTY if share is None else f"{share:.1%}".removesuffix("%")


def against_the_others(rows: Sequence[Row], name: str) -> str:
    """The points that an arm gains on each other arm: over all seeds, and with each seed."""
    measures = (rows[0].experiment.deciding, CLEAN)
    lines, arms = [], by_arm(rows)
    for other in (arm for arm in arms if arm != name):
        cells = [arms[other][0].arm.title]
        for images in measures:
            result = Result(arms, name, images, other=other)
            if not (gain := result.difference):
                cells += [EMPTY, EMPTY]
                continue
            low, high = map(points, gain.interval)
            each = (points(paired_difference([pair], images).difference) for pair in result.pairs.values())
            cells += [f"{points(gain.difference)} ({low} to {high})", ", ".join(each)]
        lines.append(cells)
    headings = [part for images in measures for part in (images, f"{images}, by seed")]
    return _lines([f"{arms[name][0].arm.short_title} gains on", *headings], lines)


def _lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = [":--", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


if __name__ == "__main__":
    for file in PAGES:
        write_text(file, page(file.read_text(encoding="utf-8")))
