"""Commands that show results and what is available: report, figure, list."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excite.cli import options
from excite.cli.options import Output, refuse_ignored, show
from excite.errors import ExciteError

if TYPE_CHECKING:
    from excite.runs.folder import RunFolder


@click.command(epilog="Example: excite report runs/mnist-sample --open")
@options.runs
@click.option("--open", "in_browser", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--out",
    type=Output(dir_okay=False),
    help="Where to write the page. Default: report.html in RUNS, or in the current folder for several RUNS.",
)
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["markdown", "latex", "csv", "json"]),
    help="Print only the table, in this format; write no page.",
)
@options.as_json
def report(folders: tuple[Path, ...], in_browser: bool, out: Path | None, wanted: str | None, as_json: bool) -> None:
    """Print the table of one or more runs, and write an HTML page with the verdict, charts, images and L.

    RUNS are run folders, or folders that contain run folders, such as those of several seeds or of a sweep.
    """
    import webbrowser

    from excite.report.rows import tidy
    from excite.report.tables import study_table
    from excite.report.verdict import conclude
    from excite.runs.collection import collect

    if wanted:
        refuse_ignored(["in_browser", "out"], "--format prints the table and writes no page; use one of them")
        if wanted != "json":
            refuse_ignored(["as_json"], f"--format {wanted} is not JSON; use one of them")
    runs = collect(folders)
    if wanted:
        rows = tidy(runs)
        study = study_table(rows)
        text = "" if wanted == "json" else getattr(study, wanted)()
        show(wanted == "json", study.to_json(str(conclude(rows))), text)
        return
    page = show_report(runs, folders[0] if len(folders) == 1 else Path(), as_json, page=out)
    if in_browser and not webbrowser.open(page.resolve().as_uri()):
        raise ExciteError(f"No browser could be started. Open {page} yourself.")


def show_report(
    runs: "Sequence[RunFolder]",
    folder: Path,
    as_json: bool,
    facts: dict[str, Any] | None = None,
    summary: str = "",
    *,
    page: Path | None = None,
) -> Path:
    """Write the page of the runs, by default into `folder`, and print their table and verdict.

    JSON also contains `facts`, and text ends with `summary` and the name of the page.
    """
    from excite.report.formats import prose
    from excite.report.page import PAGE, write_page
    from excite.report.rows import tidy
    from excite.report.tables import study_table, table
    from excite.report.verdict import conclude

    rows = tidy(runs)
    study, verdict = study_table(rows), str(conclude(rows))
    page = write_page(runs, page or folder / PAGE)
    text = table(runs[0]) if len(runs) == 1 else f"{study}\n\n{prose(verdict)}"
    show(as_json, study.to_json(verdict) | (facts or {}) | {"report": str(page)}, f"{text}\n{summary}Report: {page}")
    return page


class _WithFigures(click.Command):
    """A command whose help lists the figures, which are imported only then."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from excite.report.figures import FIGURES

        super().format_options(ctx, formatter)
        with formatter.section("Names"):
            formatter.write_dl([(name, kind.title) for name, kind in FIGURES.items()])


@click.command(cls=_WithFigures, epilog="Example: excite figure figure-2 runs/figure-2-relu-small-sweep --out figures")
@click.argument("name")
@options.runs
@click.option(
    "--out",
    type=Output(file_okay=False),
    default=Path("figures"),
    show_default=True,
    help="Folder to write the files to.",
)
def figure(name: str, folders: tuple[Path, ...], out: Path) -> None:
    """Draw one of the figures listed below as SVG, PNG and PDF.

    RUNS are run folders, or folders that contain run folders, such as those of several seeds or of a sweep.
    """
    from excite.report.figures import draw
    from excite.runs.collection import collect

    for path in draw(name, collect(folders), out):
        click.echo(path)


@click.command(name="list", epilog="Example: excite list")
@options.device
@options.as_json
def list_(device: str | None, as_json: bool) -> None:
    """List the experiments with their cost on this machine, and all data sets, models, attacks, estimators …"""
    from excite.report.figures import FIGURES
    from excite.report.formats import terminal_width
    from excite.runs.assemble import usable_device
    from excite.runs.costs import list_everything

    listing = list_everything(usable_device(device), figures=FIGURES)
    show(as_json, listing.to_json(), listing.text(terminal_width() if sys.stdout.isatty() else None))
