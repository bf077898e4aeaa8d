"""Commands that show results and what is available: report, figure, list."""

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from excite.cli.shared import Output, device_option, json_option, refuse_ignored, runs_argument, show
from excite.errors import ExciteError


@click.command(epilog="Example: excite report runs/mnist-sample --open")
@runs_argument
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
@json_option
def report(folders: tuple[Path, ...], in_browser: bool, out: Path | None, wanted: str | None, as_json: bool) -> None:
    """Print the table of one or more runs, and write an HTML page with the verdict, charts, images and L.

    RUNS are run folders, or folders that contain run folders, such as those of several seeds or of a sweep.
    """
    import webbrowser

    from excite.report.formats import prose
    from excite.report.page import PAGE, write_page
    from excite.report.rows import tidy
    from excite.report.tables import study_table, table
    from excite.report.verdict import conclude
    from excite.runs.collection import collect

    if wanted:
        refuse_ignored(["in_browser", "out"], "--format prints the table and writes no page; use one of them")
        if wanted != "json":
            refuse_ignored(["as_json"], f"--format {wanted} is not JSON; use one of them")
    runs = collect(folders)
    rows = tidy(runs)
    study, verdict = study_table(rows), str(conclude(rows))
    if wanted and wanted != "json":
        click.echo(getattr(study, wanted)())
        return
    if wanted:
        show(True, study.to_json(verdict), "")
        return
    page = write_page(runs, out or (folders[0] if len(folders) == 1 else Path()) / PAGE)
    text = table(runs[0]) if len(runs) == 1 else f"{study}\n\n{prose(verdict)}"
    show(as_json, study.to_json(verdict) | {"report": str(page)}, f"{text}\nReport: {page}")
    if in_browser and not webbrowser.open(page.resolve().as_uri()):
        raise ExciteError(f"No browser could be started. Open {page} yourself.")


class _WithFigures(click.Command):
    """A command whose help lists the figures, which are imported only then."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from excite.report.figures import FIGURES

        super().format_options(ctx, formatter)
        with formatter.section("Names"):
            formatter.write_dl([(name, kind.title) for name, kind in FIGURES.items()])


@click.command(cls=_WithFigures, epilog="Example: excite figure figure-2 runs/figure-2-relu-small-sweep --out figures")
@click.argument("name")
@runs_argument
@click.option(
    "--out",
    type=Output(file_okay=False),
    default=Path("figures"),
    show_default=True,
    help="Folder to write the files to.",
)
def figure(name: str, folders: tuple[Path, ...], out: Path) -> None:
    """Draw a figure of the paper, or another figure, as SVG, PNG and PDF.

    RUNS are run folders, or folders that contain run folders, such as those of several seeds or of a sweep.
    """
    from excite.report.figures import draw
    from excite.runs.collection import collect

    for path in draw(name, collect(folders), out):
        click.echo(path)


@click.command(name="list", epilog="Example: excite list")
@device_option
@json_option
def list_(device: str | None, as_json: bool) -> None:
    """List the experiments with their cost on this machine, and all data sets, models, attacks, estimators …"""
    with _without_garbage_collection():
        from excite.report.figures import FIGURES
        from excite.report.formats import terminal_width
        from excite.runs.assemble import usable_device
        from excite.sweeps.costs import list_everything

        listing = list_everything(usable_device(device), figures=FIGURES)
    show(as_json, listing.to_json(), listing.text(terminal_width() if sys.stdout.isatty() else None))


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Imports create almost no garbage; searching for it, also at exit, would cost a second."""
    gc.disable()
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.enable()
