"""Write one self-contained HTML page: the verdict first, then everything behind it, with the file of each number."""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from markupsafe import Markup, escape

import excite
from excite.files import write_text
from excite.lipschitz import ESTIMATORS
from excite.quantities import duration, pixels
from excite.report.estimates import trust
from excite.report.figures import accuracy, style
from excite.report.formats import template
from excite.report.rows import CLEAN, Row, apart, arm_title, arm_titles, by_experiment, by_seed, tidy
from excite.report.tables import ADJUSTED, StudyTable
from excite.report.verdict import compare_arms
from excite.runs import Experiment
from excite.runs.arms import OWN, arm_named
from excite.runs.folder import RunFolder
from excite.runs.records import StageDone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_DRAWN = 12  # experiments with charts, so that the page stays small


def write_page(runs: Sequence[RunFolder], path: Path) -> Path:
    write_text(path, page(runs))
    return path


def page(runs: Sequence[RunFolder]) -> str:
    """The HTML of the page, which loads nothing from the network."""
    base = Path(os.path.commonpath([run.path.resolve() for run in runs]))  # the innermost folder that contains all
    chart_numbers = itertools.count(1)

    def folder(run: RunFolder) -> str:
        """The run's folder, relative to the folder that contains all runs: "" or "seed-0/"."""
        inner = run.path.resolve().relative_to(base).as_posix()
        return "" if inner == "." else f"{inner}/"

    def svg(figure: "Figure", title: str) -> Markup:
        return Markup(style.svg(figure, f"chart-{next(chart_numbers)}", title, embedded=True))  # noqa: S704

    html = template(
        "page.html.j2",
        folder=folder,
        svg=svg,
        pixels=pixels,
        code=_code,
        number=lambda value, form="{:.3g}": "–" if value is None else form.format(value),
        arm_title=lambda arm: arm_title([arm]),
    )
    groups, rows, names = by_seed(runs), tidy(runs), arm_titles(runs)
    table, families = StudyTable(rows), [same for same in accuracy.rate_families(runs) if len(by_seed(same)) > 1]
    rows_of = {experiment[0].runs: experiment for experiment in by_experiment(rows)}
    titles = apart([group[0].experiment for group in groups], shown=("seed", "summary", "arms"))
    files = resources.files("excite.report") / "templates"
    css, script = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    with style.settings():
        return html.render(
            css=css,
            script=script,
            title=" and ".join(dict.fromkeys(run.experiment.name for run in runs)),
            summary=" ".join(dict.fromkeys(group[0].experiment.summary for group in groups)),
            facts=facts(groups),
            places=places(runs),
            runs=runs,
            first=runs[0],
            rows=rows,
            trained=sorted(rows, key=lambda row: runs.index(row.run)),
            verdict=table.verdict,
            notes=table.notes,
            legend=[(title, *style.look(name)) for name, title in names.items()],
            glyphs=dict(zip(style.MARKERS, style.GLYPHS, strict=True)),
            multiples=[arm for name in names if (arm := arm_named(name)).multiple],
            searches=[arm for name in names if (arm := arm_named(name)).rates],
            methods=ESTIMATORS,
            table=_table(table, folder),
            adjusted={(each.runs, each.name, each.images): p for each, p in table.adjusted.items()},
            adjusted_note=ADJUSTED.format(len(table.adjusted)),
            settings=[
                _setting(group, rows_of.get(group, []), title, drawn=count < MAX_DRAWN)
                for count, (group, title) in enumerate(zip(groups, titles, strict=True))
            ],
            n_drawn=MAX_DRAWN,
            estimates=list(_estimates(runs)),
            rates=accuracy.against_rate(families) if families else None,
            version=excite.__version__,
        )


def _setting(group: Sequence[RunFolder], rows: Sequence[Row], title: str, *, drawn: bool) -> dict[str, Any]:
    """One experiment on the page."""
    images = (CLEAN, *group[0].experiment.attacks)
    return {
        "title": title,  # what sets it apart; empty if it is the only one
        "runs": group,
        "compared": [result for on in images for result in compare_arms(rows, on)] if rows else [],
        "seeds": len(group),
        "toml": toml(group[0].experiment),
        "dots": accuracy.dots(rows) if drawn else {},
        "curves": accuracy.curves(group) if drawn else {},
        "radii": accuracy.radii(rows) if drawn else {},
    }


def _code(text: str) -> Markup:
    """Escaped text in which `backticks` mark code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704


def _table(table: StudyTable, folder: Callable[[RunFolder], str]) -> dict[str, Any]:
    """The columns that differ between rows, and the folders of each row."""
    shown = [title for title, texts in table.columns.items() if title == "arm" or len(set(texts)) > 1]
    folders = [", ".join(f"{folder(row.run)}{row.name}/" for row in arm[CLEAN].rows) for arm in table.arms]
    return {
        "titles": {title: table.words(title) for title in shown},
        "rows": [(folders[n], [table.columns[title][n] for title in shown]) for n in range(len(table.arms))],
    }


def _estimates(runs: Sequence[RunFolder]) -> Iterator[dict[str, Any]]:
    """Each run's own L and those of its arms; for a single run, those of all other estimators, too."""
    for run in runs:
        used = {arm.arm.estimator for arm in run.arms}
        for name, stored in run.estimates.items():
            if len(runs) == 1 or name == OWN or name in used:
                estimate, method = stored.estimate, run.options_of(name)["method"]
                yield {
                    "run": run,
                    "name": name or (estimate.method if estimate else method),
                    "method": method,
                    "stored": stored,
                    "file": run.estimate_file(name).relative_to(run.path).as_posix(),
                    "used": name in used,
                    "preset": name != OWN,
                    "trust": trust(run, estimate) if estimate else None,
                }


def facts(groups: Sequence[Sequence[RunFolder]]) -> dict[str, str]:
    """For the top of the page: what was trained on which data, for how long and until when."""
    experiments, runs = [group[0].experiment for group in groups], [run for group in groups for run in group]
    ends = [stage.ended for run in runs for stage in run.stages]
    columns = {
        "data": [experiment.data_set for experiment in experiments],
        "network": [experiment.network for experiment in experiments],
        "objective": [experiment.objective for experiment in experiments],
        "epochs": [str(experiment.training.epochs) for experiment in experiments],
        "seeds": [str(len({run.experiment.seed for run in runs}))],
        "settings": [str(len(groups))] if len(groups) > 1 else [],
        "computing time": [duration(sum(run.seconds for run in runs))],
        "finished": [_date(max(ends))] if ends else [],
    }
    return {name: ", ".join(dict.fromkeys(values)) for name, values in columns.items() if values}


def places(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """The machines, each with one set of versions, that the stages of the runs ran on."""
    shared: dict[str, list[StageDone]] = {}
    for stage in (stage for run in runs for stage in run.stages):
        shared.setdefault(str(stage.circumstances), []).append(stage)
    return [
        {
            "circumstances": same[0].circumstances,
            "last": _date(max(stage.ended for stage in same)),
            "n_stages": len(same),
            "time": duration(sum(stage.seconds for stage in same)),
        }
        for same in shared.values()
    ]


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def toml(experiment: Experiment) -> str:
    """The experiment as a TOML file for `excite run FILE.toml`."""
    return tomli_w.dumps(_without_none(experiment.to_json()))


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }
