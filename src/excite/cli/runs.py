"""Commands that run experiments (run, sweep, train, batch-size), show results (report, figure), and list, doctor."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excite.cli import options
from excite.cli.options import SHARE, Output, console, read_run, refuse_ignored, resolve_experiment, show
from excite.errors import ExciteError, UnidentifiedError

if TYPE_CHECKING:
    from excite.execution import EngineName
    from excite.runs.folder import RunFolder

FORMATS = ("markdown", "latex", "csv", "json")


@click.command(epilog="Example: excite run mnist-sample --arms baseline,poe,largest,grid:5 --seeds 5 --out runs/five")
@options.experiment
@options.arms
@options.seeds
@options.estimator
@options.force
@click.option("--workers", type=options.POSITIVE, help="Processes that share each attack, with one thread each.")
@options.log
@options.out
@options.changes
@options.work
def run(experiment: str, workers: int | None, log: str | None, device: str | None, as_json: bool, **given: Any) -> None:
    """Run the paper's whole procedure.

    It trains a baseline, estimates L, trains at 1/L and 2/L, attacks all networks and writes a report. EXPERIMENT
    is a name from `excite list`, a TOML file, or a run folder to continue. Finished stages are not repeated: run
    the command again to resume an interrupted run, or to add arms and seeds.
    """
    from excite.execution import Shards
    from excite.runs.folder import RunFolder, collect
    from excite.runs.procedure import run_experiment
    from excite.training.distributed import launched

    write_run, shards, unidentified = options.logger(log), Shards(workers), None
    with launched() as ranks:
        chosen, speaker = resolve_experiment(experiment, **given), console()
        try:
            run_experiment(**vars(chosen), console=speaker, device=device, shards=shards, ranks=ranks)
        except UnidentifiedError as error:
            if ranks.world > 1:
                raise  # the other processes have ended
            unidentified = error  # the report comes first
    if not ranks.first:
        return
    runs = collect([chosen.folder]) if chosen.seeds else [RunFolder(chosen.folder)]
    for each in runs:
        write_run(each.path)
    show_report(runs, chosen.folder, as_json, {} if chosen.seeds else runs[0].to_json())
    if unidentified:
        raise unidentified


@click.command(epilog="Example: excite sweep mnist-sample --seeds 5 --arms baseline,poe --workers 2")
@click.argument("experiment")
@options.arms
@options.seeds
@options.engine
@click.option("--workers", type=options.POSITIVE, help="Jobs at a time; by default one per GPU or core.")
@click.option("--shards", type=options.POSITIVE, help="Processes or tasks that share the attack of each job.")
@options.address
@click.option("--out", type=Output(file_okay=False), help="Parent of the run folders.")
@options.estimator
@options.force
@options.changes
@options.work
def sweep(
    experiment: str,
    engine: "EngineName",
    workers: int | None,
    shards: int | None,
    address: str | None,
    device: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run every combination of settings, seeds and arms.

    The settings are those of the experiment's [sweep] table; every combination is an independent job. Finished jobs
    are not repeated, and two sweeps can share a folder. A killed job restarts from its checkpoint. Exits with 1 if
    a job failed; a diverged training is a result, not a failure.
    """
    from excite.execution import Shards
    from excite.runs.folder import collect
    from excite.sweeps import sweep as sweep_runs

    if engine != "ray":
        refuse_ignored(["address"], "it names a Ray cluster; add --engine ray")
    if address:
        refuse_ignored(["workers"], "a cluster has its own; leave out --workers or --address")
    chosen = resolve_experiment(experiment, sweeping=True, **given)
    jobs_in = Shards(workers, engine, address)
    finished = sweep_runs(**vars(chosen), console=console(), device=device, jobs_in=jobs_in, shards=shards)
    show_report(collect([chosen.folder]), chosen.folder, as_json, finished.to_json(), f"{finished}\n")
    if finished.failed:
        failed = f"{len(finished.failed)} of {len(finished.outcomes)} jobs failed"
        raise ExciteError(f"{failed}. Run the command again to retry them.")


@click.command(epilog="Example: excite train mnist-sample --set training.schedule.rate=0.2 --out runs/fast")
@options.experiment
@options.arm
@options.force
@options.log
@options.out
@options.changes
@options.work
def train(experiment: str, arm: str, log: str | None, device: str | None, as_json: bool, **given: Any) -> None:
    """Train one arm of an experiment, after L if the arm needs it."""
    from excite.runs.arms import arm_named
    from excite.runs.folder import RunFolder
    from excite.runs.procedure import Run
    from excite.training.distributed import launched

    name, write_run = arm_named(arm).name, options.logger(log)
    with launched() as ranks:
        chosen, speaker = resolve_experiment(experiment, **given), console()
        opened = ranks.each(partial(Run, chosen.folder, chosen.experiment, console=speaker, device=device, arms=[name]))
        opened.train(name, ranks)
        ranks.from_first(partial(write_run, chosen.folder))
    result = RunFolder(chosen.folder).arm(name)
    show(as_json, result.to_json(), f"{result}\nCheckpoint: {result.path}")


@click.command(name="batch-size", epilog="Example: excite batch-size mnist-sample --try 64 256 1000 --threshold 0.9")
@click.argument("experiment", metavar="EXPERIMENT_OR_RUN")
@click.argument("sizes", nargs=-1, type=options.POSITIVE)
@click.option("--try", "tries", is_flag=True, help="Train at batch sizes, which follow.")
@click.option("--threshold", type=SHARE, help="Clean accuracy to reach; by default 0.8, or 0.6 on CIFAR-100.")
@options.arm
@options.out
@options.changes
@options.work
def batch_size(
    experiment: str,
    sizes: tuple[int, ...],
    tries: bool,
    threshold: float | None,
    arm: str,
    device: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Choose a batch size as the paper does.

    This is the smallest size with Assumption 2, or a smaller one if that does not reach the accuracy. With --try,
    trains the baseline of an experiment at each of SIZES, each in its own folder. Without it, reads one training of
    a run folder and says which batch size makes its steps acute in expectation. That training needs
    record.noise_examples.
    """
    from excite.runs.folder import check_not_a_run
    from excite.runs.procedure import Run
    from excite.sweeps import check_batch_sizes, try_batch_sizes

    if not tries and not sizes:
        refuse_ignored(["threshold", "out", "changes", "device"], "it belongs to --try; add --try and SIZES")
        _predict_batch_size(Path(experiment), arm, as_json)
        return
    if not (tries and sizes):
        raise click.UsageError("Missing argument 'SIZES...'." if tries else "Missing option '--try'.")
    refuse_ignored(["arm"], "--try trains the baseline")
    chosen, speaker = resolve_experiment(experiment, sizes=sizes, **given).experiment, console()
    parent = given["out"] or Path("runs") / f"{Path(experiment).stem}-batch-size"
    check_not_a_run(parent)
    check_batch_sizes(chosen, sizes)
    sized = {size: chosen.with_values({"training.batch_size": size}) for size in sizes}
    runs = {size: Run(parent / str(size), each, console=speaker, device=device) for size, each in sized.items()}
    choice = try_batch_sizes(runs, threshold)
    show(as_json, asdict(choice), str(choice))


def _predict_batch_size(folder: Path, arm: str, as_json: bool) -> None:
    from excite.excitation import expected_acuteness
    from excite.runs.arms import arm_named
    from excite.runs.assemble import epoch_images

    if not folder.is_dir():
        raise click.UsageError(
            f"{folder} is not a run folder, from which a batch size could be predicted. Add --try and batch sizes to "
            "train at each of them."
        )
    run = read_run(folder)
    expected, images = expected_acuteness(run.needed_trace(arm_named(arm).name)), epoch_images(run.experiment)
    text = str(expected)
    if max(expected.batch_size_for(0.5) or 0, expected.batch_size_for() or 0) > images:
        text += f" An epoch has only {images:,} images; a batch of all of them has no sampling noise."
    show(as_json, expected.to_json(), text)


@click.command(epilog="Example: excite report runs/mnist-sample --open")
@options.runs
@click.option("--open", "in_browser", is_flag=True, help="Open the page in a browser.")
@click.option("--out", type=Output(dir_okay=False), help="File of the page; by default report.html in RUNS.")
@click.option("--format", "wanted", type=click.Choice(FORMATS), help="Print only the table; write no page.")
@options.as_json
def report(folders: tuple[Path, ...], in_browser: bool, out: Path | None, wanted: str | None, as_json: bool) -> None:
    """Print a table of runs, and write their HTML page.

    The page has the verdict, charts, images and L. RUNS are run folders, or folders that contain run folders, such
    as those of several seeds or of a sweep.
    """
    import webbrowser

    from excite.report.rows import tidy
    from excite.report.tables import StudyTable
    from excite.runs.folder import collect

    if wanted:
        refuse_ignored(["in_browser", "out"], "--format prints the table and writes no page; use one of them")
        if wanted != "json":
            refuse_ignored(["as_json"], f"--format {wanted} is not JSON; use one of them")
        table = StudyTable(tidy(collect(folders)))
        show(wanted == "json", table.to_json(), "" if wanted == "json" else getattr(table, wanted)())
        return
    page = show_report(collect(folders), folders[0] if len(folders) == 1 else Path(), as_json, page=out)
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
    from excite.report.page import write_page
    from excite.report.rows import tidy
    from excite.report.tables import StudyTable

    table = StudyTable(tidy(runs))
    page = write_page(runs, page or folder / "report.html")
    text = f"{table.with_verdict()}\n{summary}Report: {page}"
    show(as_json, table.to_json() | (facts or {}) | {"report": str(page)}, text)
    return page


@click.command(epilog="Example: excite figure figure-2 runs/figure-2-relu-small-sweep --out figures")
@click.argument("name")
@options.runs_if_any
@click.option("--out", type=Output(file_okay=False), default=Path("figures"), show_default=True, help="Their folder.")
def figure(name: str, folders: tuple[Path, ...], out: Path) -> None:
    """Draw a figure as SVG, PNG and PDF.

    `excite list` shows all names. RUNS are run folders, or folders that contain run folders, such as those of
    several seeds or of a sweep. Without RUNS, figure-1 shows the schedules at the published L; every other figure
    needs them.
    """
    from excite.report.figures import draw
    from excite.runs.folder import collect

    for path in draw(name, collect(folders), out):
        click.echo(path)


@click.command(name="list", epilog="Example: excite list")
@options.device
@options.as_json
def list_(device: str | None, as_json: bool) -> None:
    """List experiments with their cost here, and all names.

    The cost is time and memory on this machine; the names are those that experiments can use.
    """
    from excite.randomness import usable_device
    from excite.report.figures import FIGURES
    from excite.runs.costs import list_everything

    listing = list_everything(usable_device(device), figures=FIGURES)
    show(as_json, listing.to_json(), str(listing))


@click.command(epilog="Example: excite doctor")
@options.device
@options.as_json
def doctor(device: str | None, as_json: bool) -> None:
    """Show versions and devices, and time each precision.

    This takes about a minute and says which precision is fastest here.
    """
    from excite.doctor import diagnose
    from excite.randomness import usable_device

    with console().task("Measuring") as on_progress:
        diagnosis = diagnose(usable_device(device), on_progress=on_progress)
    show(as_json, diagnosis.to_json(), str(diagnosis))
