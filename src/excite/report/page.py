"""Write one self-contained HTML page: the verdict first, then everything behind it, with the file of each number."""

import base64
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import excite
from excite.files import write_text
from excite.lipschitz import ESTIMATORS
from excite.quantities import number, pixels
from excite.report import origin
from excite.report.comparison import compare_arms, points
from excite.report.figures import accuracy, style
from excite.report.rows import CLEAN, Row, by_experiment, select, tidy
from excite.report.tables import StudyTable, study_table
from excite.report.trust import method_of, trust_in
from excite.report.verdict import conclude
from excite.runs.arms import OWN, arm_named
from excite.runs.collection import Group, apart, by_seed, same_but, without_rate
from excite.runs.folder import RunFolder, arm_title, arm_titles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"
MAX_DRAWN = 12  # experiments with charts, so that the page stays small


def write_page(runs: RunFolder | Sequence[RunFolder], path: Path | None = None) -> Path:
    """Write the page of one or more runs to `path`; by default to report.html in the folder that contains them all."""
    runs = [runs] if isinstance(runs, RunFolder) else runs
    path = path or (runs[0].path if len(runs) == 1 else common_folder(runs)) / PAGE
    write_text(path, page(runs))
    return path


def common_folder(runs: Sequence[RunFolder]) -> Path:
    """The run's folder, or the innermost folder that contains all runs."""
    return Path(os.path.commonpath([run.path.resolve() for run in runs]))


def page(runs: Sequence[RunFolder]) -> str:
    """The HTML of the page, which loads nothing from the network."""
    base, chart_numbers = common_folder(runs), itertools.count(1)

    def folder(run: RunFolder) -> str:
        """The run's folder, relative to the folder that contains all runs: "" or "seed-0/"."""
        inner = run.path.resolve().relative_to(base).as_posix()
        return "" if inner == "." else f"{inner}/"

    def svg(figure: "Figure", title: str) -> Markup:
        return Markup(style.svg(figure, f"chart-{next(chart_numbers)}", title, embedded=True))  # noqa: S704

    environment = Environment(
        loader=PackageLoader("excite", "report/templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"points": points, "pixels": pixels, "folder": folder, "svg": svg, "code": _code}
    environment.filters |= {
        "arm_title": lambda arm: arm_title([arm]),
        "number": _number,
        "sentence": lambda text: text[:1].upper() + text[1:],
    }
    groups, rows, names = by_seed(runs), tidy(runs), arm_titles(runs)
    rows_of = {experiment[0].group.runs: experiment for experiment in by_experiment(rows)}
    titles = apart([group.experiment for group in groups], shown=("seed", "summary", "arms"))
    files = resources.files("excite.report") / "templates"
    css, script = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    with style.settings():
        return environment.get_template("page.html.j2").render(
            policy=_policy(script),
            css=css,
            script=script,
            title=" and ".join(dict.fromkeys(run.experiment.name for run in runs)),
            summary=" ".join(dict.fromkeys(origin.summary(group.experiment) for group in groups)),
            facts=_facts(groups) | origin.in_short(runs),
            places=origin.places(runs),
            runs=runs,
            first=runs[0],
            rows=rows,
            trained=sorted(select(rows), key=lambda row: runs.index(row.run)),
            verdict=conclude(rows),
            legend=[(title, *style.look(name)) for name, title in names.items()],
            glyphs=dict(zip(style.MARKERS, style.GLYPHS, strict=True)),
            multiples=[arm for name in names if (arm := arm_named(name)).multiple],
            searches=[arm for name in names if (arm := arm_named(name)).rates],
            methods=ESTIMATORS,
            table=_table(study_table(rows), folder),
            settings=[
                _setting(group, rows_of.get(group.runs, []), title, drawn=count < MAX_DRAWN)
                for count, (group, title) in enumerate(zip(groups, titles, strict=True))
            ],
            n_drawn=MAX_DRAWN,
            estimates=list(_estimates(runs)),
            rates=_rates(runs),
            version=excite.__version__,
        )


def _setting(group: Group, rows: Sequence[Row], title: str, *, drawn: bool) -> dict[str, Any]:
    """One experiment on the page."""
    images = (CLEAN, *group.experiment.attacks)
    return {
        "title": title,  # what sets it apart; empty if it is the only one
        "group": group,
        "findings": [finding for on in images for finding in compare_arms(rows, on)] if rows else [],
        "commands": origin.commands(group),
        "toml": origin.toml(group.experiment),
        "dots": accuracy.dots(rows) if drawn else {},
        "curves": accuracy.curves(group.runs) if drawn else {},
        "radii": accuracy.radii(rows) if drawn else {},
    }


def _rates(runs: Sequence[RunFolder]) -> "Figure | None":
    """Accuracy against the rate, for evaluated runs that differ in their rate."""
    families = [
        family
        for family in same_but(without_rate, runs)
        if len({number(run.experiment.training.schedule["rate"]) for run in family}) > 1
        if any(arm.evaluation for run in family for arm in run.arms)
    ]
    return accuracy.against_rate(families) if families else None


def _policy(script: str) -> str:
    """Allow the page its own script, styles and embedded images, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _code(text: str) -> Markup:
    """Escaped text in which `backticks` mark code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704


def _number(value: float | None, form: str = "{:.3g}") -> str:
    return "–" if value is None else form.format(value)


def _facts(groups: Sequence[Group]) -> dict[str, str]:
    """What was trained on which data."""
    experiments = [group.experiment for group in groups]
    columns = {
        "data": [experiment.data_set for experiment in experiments],
        "network": [experiment.network for experiment in experiments],
        "objective": [experiment.objective for experiment in experiments],
        "epochs": [str(experiment.training.epochs) for experiment in experiments],
        "seeds": [str(len({seed for group in groups for seed in group.seeds}))],
    }
    facts = {name: ", ".join(dict.fromkeys(values)) for name, values in columns.items()}
    return facts | ({"settings": str(len(groups))} if len(groups) > 1 else {})


def _table(table: StudyTable, folder: Callable[[RunFolder], str]) -> dict[str, Any]:
    """The columns that differ between rows, and the folders of each row; differences have a table of their own."""
    shown = [
        title
        for title, cells in table.columns.items()
        if not title.startswith("Δ") and (title == "arm" or len({cell.text for cell in cells}) > 1)
    ]
    folders = [", ".join(f"{folder(row.run)}{row.name}/" for row in arm[CLEAN].rows) for arm in table.arms]
    has_differences = any("Δ" in title for title in shown)
    return {
        "titles": {title: table.words(title) for title in shown},
        "rows": [(folders[n], [table.columns[title][n] for title in shown]) for n in range(len(table.arms))],
        "notes": [note for note in table.notes if has_differences or not note.startswith("Δ")],
    }


def _estimates(runs: Sequence[RunFolder]) -> Iterator[dict[str, Any]]:
    """Each run's own L and those of its arms; for a single run, those of all other estimators, too."""
    for run in runs:
        used = {arm.arm.estimator for arm in run.arms}
        for name, stored in run.estimates.items():
            if len(runs) == 1 or name == OWN or name in used:
                estimate = stored.estimate
                yield {
                    "run": run,
                    "name": name or (estimate.method if estimate else method_of(run)),
                    "method": method_of(run, name),
                    "stored": stored,
                    "file": run.estimate_file(name).relative_to(run.path).as_posix(),
                    "used": name in used,
                    "preset": name != OWN,
                    "trust": trust_in(run, estimate) if estimate else None,
                }
