"""What commands print: text for people, JSON for machines."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from excite.sweeps.sweep import Sweep


def show(as_json: bool, value: Any, text: str) -> None:
    click.echo(json.dumps(value, indent=2, default=str) if as_json else text)


def show_results(folder: Path, as_json: bool) -> None:
    from excite.report import table, write_page
    from excite.runs.folder import RunFolder

    results = RunFolder(folder)
    page = write_page(results)
    show(as_json, results.to_json() | {"report": str(page)}, f"{table(results)}\nReport: {page}")


def show_study(folder: Path, as_json: bool, sweep: "Sweep | None" = None) -> None:
    from excite.report import write_page
    from excite.report.page.page import PAGE
    from excite.report.tables.study_table import study_table
    from excite.report.verdict import conclude
    from excite.runs.collection import by_seed, collect

    runs = collect([folder])
    groups = by_seed(runs)
    study, page = study_table(groups), write_page(runs, folder / PAGE)
    facts = study.to_json() | {"report": str(page)} | (sweep.to_json() if sweep else {})
    summary = f"{sweep}\n" if sweep else ""
    show(as_json, facts, f"{study}\n\n{conclude(groups)}\n{summary}Report: {page}")
