"""What commands print: text for people, JSON for machines."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excite.errors import printable

if TYPE_CHECKING:
    from excite.sweeps.sweep import Sweep


def show(as_json: bool, value: Any, text: str) -> None:
    click.echo(json.dumps(value, indent=2, default=str) if as_json else printable(text))


def show_results(folder: Path, as_json: bool) -> None:
    """One run: its table, its page, and for machines everything it found."""
    from excite.report.page.page import write_page
    from excite.report.tables.run_tables import study_table, table
    from excite.report.verdict import verdict
    from excite.runs.collection import by_seed
    from excite.runs.folder import RunFolder

    run = RunFolder(folder)
    page = write_page(run)
    if not as_json:
        show(as_json, None, f"{table(run)}\nReport: {page}")
        return
    show(as_json, study_table(by_seed([run])).to_json(verdict(run)) | run.to_json() | {"report": str(page)}, "")


def show_study(folder: Path, as_json: bool, sweep: "Sweep | None" = None) -> None:
    """Many runs: their table, their page, how the sweep went."""
    from excite.report.page.page import PAGE, write_page
    from excite.report.tables.formats import prose
    from excite.report.tables.run_tables import study_table
    from excite.report.verdict import conclude
    from excite.runs.collection import by_seed, collect

    runs = collect([folder])
    groups = by_seed(runs)
    study, verdict, page = study_table(groups), conclude(groups), write_page(runs, folder / PAGE)
    facts = study.to_json(str(verdict)) | {"report": str(page)} | (sweep.to_json() if sweep else {})
    summary = f"{sweep}\n" if sweep else ""
    show(as_json, facts, f"{study}\n\n{prose(str(verdict))}\n{summary}Report: {page}")
