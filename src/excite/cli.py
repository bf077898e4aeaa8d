"""The command line: one function per command, no logic; torch is imported only by the commands that need it."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import excite
from excite.errors import DivergedError, ExciteError, InputError, InterruptedRunError
from excite.quantities import number

if TYPE_CHECKING:
    from excite.runs.procedure import Run
    from excite.sweeps.sweep import Sweep


class Number(click.ParamType[float]):
    """A number, or a fraction such as 8/255."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return number(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)


NUMBER = Number()

EPILOG = """\b
Exit codes: 0 done, 1 other error, 2 wrong input, 3 training diverged, 4 data not to be had, 5 corrupt file,
130 interrupted (Ctrl-C), 143 terminated. A stopped run is saved: the same command goes on from there."""

experiment_argument = click.argument("experiment", default="mnist-sample")
run_folder = click.Path(path_type=Path, exists=True, file_okay=False)
run_argument = click.argument("folder", metavar="RUN", type=run_folder)
runs_argument = click.argument("folders", metavar="RUNS…", nargs=-1, required=True, type=run_folder)
out_option = click.option("--out", type=click.Path(path_type=Path), help="Run folder; by default runs/<experiment>.")
set_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key of the experiment."
)
device_option = click.option("--device", help="cpu, cuda, mps; by default an accelerator if there is one.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def _arm_names(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
    from excite.runs.arms import arm_names

    return arm_names(value) if value else ()


def _arm_name(_context: click.Context, _option: click.Parameter, value: str) -> str:
    from excite.runs.arms import arm_named

    return arm_named(value).name


arm_option = click.option(
    "--arm", callback=_arm_name, default="baseline", show_default=True, help="baseline, poe, largest or grid:K."
)
arms_option = click.option(
    "--arms",
    callback=_arm_names,
    metavar="ARM,…",
    help="Of baseline, poe (1/L), largest (2/L) and grid:K (a grid search over K rates); by default the experiment's.",
)
seeds_option = click.option(
    "--seeds", type=click.IntRange(min=1), help="Repeat everything for the seeds 0, 1, … in a folder each."
)


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(excite.__version__, prog_name="excite")
@click.pass_context
def cli(context: click.Context) -> None:
    """Learning rates that make neural networks robust: find L, train at 1/L and 2/L, attack, compare."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and context.invoked_subcommand != "train":
        raise click.UsageError(
            "torchrun is for `excite train`: train each arm with it, then give this command without torchrun; "
            "what is trained is not trained again."
        )


@cli.command(epilog="Example: excite run mnist-sample --arms baseline,poe,largest,grid:5 --seeds 5 --out runs/five")
@experiment_argument
@arms_option
@seeds_option
@out_option
@set_option
@device_option
@json_option
def run(
    experiment: str,
    arms: tuple[str, ...],
    seeds: int | None,
    out: Path | None,
    changes: tuple[str, ...],
    device: str | None,
    as_json: bool,
) -> None:
    """Run the paper's whole procedure: baseline, L, the 1/L and 2/L arms, attacks, report.

    EXPERIMENT is a name from `excite list` or a TOML file. A stage that is finished is not run again: a stopped run
    goes on, and arms and seeds can be added.
    """
    from excite.console import Console
    from excite.runs import load
    from excite.runs.procedure import Run
    from excite.sweeps.sweep import run_folders

    description = load(experiment, overrides=changes)
    folder = out or Path("runs") / description.name
    for path, each in run_folders(description, folder, seeds).items():
        Run(path, each, console=Console(), device=device).all(arms)
    if seeds is None:
        _show_results(folder, as_json)
    else:
        _show_study(folder, as_json)


@cli.command(epilog="Example: excite sweep mnist-sample --seeds 5 --arms baseline,poe --workers 2")
@click.argument("experiment")
@arms_option
@seeds_option
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="Jobs at a time; by default one per GPU, or per core.")
@click.option("--address", help="A Ray cluster to use, for instance auto; by default ray starts on this machine.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Holds the run folders; by default runs/<experiment>-sweep."
)
@set_option
@device_option
@json_option
def sweep(
    experiment: str,
    arms: tuple[str, ...],
    seeds: int | None,
    engine: str,
    workers: int | None,
    address: str | None,
    out: Path | None,
    changes: tuple[str, ...],
    device: str | None,
    as_json: bool,
) -> None:
    """Run every combination of an experiment's [sweep] table, seed and arm, as independent jobs.

    What is finished is not run again, also not by another sweep in the same folder at the same time. A killed job is
    started again and goes on from its checkpoint. Exits with 1 if a job failed; a diverged training is a result.
    """
    from functools import partial

    from excite.console import Console
    from excite.runs import load
    from excite.sweeps import engines
    from excite.sweeps.sweep import combinations
    from excite.sweeps.sweep import sweep as sweep_runs

    if address and (engine != "ray" or workers):
        raise click.UsageError("--address goes with --engine ray, and without --workers: the cluster has its own.")
    description = load(experiment, overrides=changes)
    folder = out or Path("runs") / f"{description.name}-sweep"
    finished = sweep_runs(
        combinations(description, folder, seeds),
        folder,
        engine=partial(engines.run_locally, workers=workers, device=device)
        if engine == "local"
        else partial(engines.run_on_ray, address=address, workers=workers, device=device),
        console=Console(),
        arms=arms,
        device=device,
    )
    _show_study(folder, as_json, finished)
    if finished.failed:
        failed = f"{len(finished.failed)} of {len(finished.outcomes)} jobs failed"
        raise ExciteError(f"{failed}. The same command tries them again.")


@cli.command(epilog="Example: excite train mnist-sample --set training.schedule.rate=0.2 --out runs/fast")
@experiment_argument
@arm_option
@out_option
@set_option
@device_option
@json_option
def train(
    experiment: str, arm: str, out: Path | None, changes: tuple[str, ...], device: str | None, as_json: bool
) -> None:
    """Train one arm of an experiment; 1/L and 2/L are estimated first if they are needed."""
    from excite.runs.folder import load_arm
    from excite.training.distributed import launched

    with launched() as ranks:
        opened = _run(experiment, out, changes, device)
        opened.train(arm, ranks)
    result = load_arm(opened.folder, arm)
    _show(as_json, result.to_json(), f"{result}\nCheckpoint: {opened.folder / arm}")


@cli.command(epilog="Example: excite estimate runs/mnist-sample --compare")
@run_argument
@click.option("--compare", is_flag=True, help="Every method side by side, with its 1/L and 2/L.")
@device_option
@json_option
def estimate(folder: Path, compare: bool, device: str | None, as_json: bool) -> None:
    """How large is L for the experiment of a run folder? Estimated once, then read."""
    from excite.report import estimates_table

    opened = _open(folder, device)
    if compare:
        found = opened.estimates()
        values = {name: answer if isinstance(answer, str) else answer.to_json() for name, answer in found.items()}
        _show(as_json, values, estimates_table(found))
    else:
        answer = opened.estimate()
        _show(as_json, answer.to_json(), str(answer))


@cli.command(epilog="Example: excite certify runs/mnist-sample --arm poe")
@run_argument
@arm_option
@device_option
@json_option
def certify(folder: Path, arm: str, device: str | None, as_json: bool) -> None:
    """Was a training persistently excited? Per epoch: acuteness, the proof's inequality, rates against 1/L and 2/L."""
    from excite.report import excitation_facts, excitation_table

    opened = _open(folder, device)
    trace, found = opened.trace(arm), opened.estimate()
    _show(as_json, excitation_facts(trace, found), excitation_table(trace, found))


@cli.command(name="batch-size", epilog="Example: excite batch-size mnist-sample --try 64 256 1000 --threshold 0.9")
@click.argument("experiment")
@click.argument("sizes", nargs=-1, type=click.IntRange(min=1), required=True)
@click.option("--try", is_flag=True, expose_value=False, help="Stands before the sizes.")
@click.option("--threshold", type=float, default=0.8, show_default=True, help="The clean accuracy to reach.")
@out_option
@set_option
@device_option
@json_option
def batch_size(
    experiment: str,
    sizes: tuple[int, ...],
    threshold: float,
    out: Path | None,
    changes: tuple[str, ...],
    device: str | None,
    as_json: bool,
) -> None:
    """Choose a batch size as the paper does: the smallest at which Assumption 2 holds, then down to enough accuracy.

    Trains the baseline at each of SIZES, in a folder each.
    """
    from excite.runs.batch_size import try_batch_sizes

    parent = out or Path("runs") / f"{Path(experiment).stem}-batch-size"
    settings = {size: (*changes, f"training.batch_size={size}") for size in sizes}
    choice = try_batch_sizes(
        {size: _run(experiment, parent / str(size), setting, device) for size, setting in settings.items()}, threshold
    )
    _show(as_json, choice.to_json(), str(choice))


@cli.command(epilog="Example: excite attack runs/mnist-sample --arm poe --with pgd --eps 0.1 --examples 200")
@click.argument("target", metavar="[RUN_OR_WEIGHTS]", type=click.Path(path_type=Path), required=False)
@arm_option
@click.option("--with", "names", multiple=True, help="pgd, autoattack, square …; by default the experiment's attacks.")
@click.option("--eps", type=NUMBER, help="Radius of the ball, for instance 8/255.")
@click.option("--step", type=NUMBER, help="Step length of PGD; by default 2.5 ε / steps.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps of PGD.")
@click.option("--restarts", type=click.IntRange(min=1), help="Restarts; PGD then starts at random points.")
@click.option("--norm", type=click.Choice(["linf", "l2"]), help="The norm of the ball.")
@click.option("--examples", type=click.IntRange(min=1), help="Attack a random subset of the test images.")
@click.option("--subset-seed", default=0, show_default=True, help="Which subset.")
@click.option("--resume", is_flag=True, help="Go on from an attack that was stopped.")
@click.option("--model", help="A stranger's model, package.module:factory, or the name of one of ours.")
@click.option("--weights", type=click.Path(path_type=Path), help="Its weights: .safetensors, or .pt with tensors only.")
@click.option("--data", "data_name", default="cifar10", show_default=True, help="Data for a stranger's model.")
@device_option
@json_option
def attack(
    target: Path | None,
    arm: str,
    names: tuple[str, ...],
    examples: int | None,
    subset_seed: int,
    resume: bool,
    model: str | None,
    weights: Path | None,
    data_name: str,
    device: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Attack a trained arm of a run folder, or a stranger's weights with --model."""
    from excite.console import Console
    from excite.runs.attacking import arm_of_run, attack_target, named_attacks, stranger

    weights = weights or (target if target and target.is_file() else None)
    if model and weights and names:
        chosen = stranger(model, weights, data_name=data_name, device=device, folder=weights.parent)
    elif target is None or weights:
        raise click.UsageError("Name a run folder, or --model, --weights and --with for a model of yours.")
    elif names:
        chosen = arm_of_run(_open(target, device), arm)
    else:
        evaluation = _open(target, device).attack(arm)
        _show(as_json, evaluation.to_json(), str(evaluation))
        return
    options["random_start"] = True if options["restarts"] else None
    evaluation = attack_target(
        chosen,
        named_attacks(names, options),
        console=Console(),
        examples=examples,
        subset_seed=subset_seed,
        resume=resume,
    )
    _show(as_json, evaluation.to_json(), str(evaluation))


@cli.command(
    name="pseudo-label",
    epilog="Example: excite pseudo-label runs/teacher --data cifar10-10k+40k --out pseudo.npz --threshold 0.9",
)
@run_argument
@arm_option
@click.option("--data", "source", required=True, help="A data set with hidden labels, or an .npz file of images.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The .npz file to write.")
@click.option("--threshold", type=NUMBER, default=0.0, show_default=True, help="The least confidence to keep.")
@click.option("--balance", is_flag=True, help="Keep equally many of each class, the most confident ones.")
@device_option
@json_option
def pseudo_label(
    folder: Path,
    arm: str,
    source: str,
    out: Path,
    threshold: float,
    balance: bool,
    device: str | None,
    as_json: bool,
) -> None:
    """Label images that have no labels with a trained arm, for self-training: data.unlabelled takes the file."""
    from excite.runs.stages.pseudo_label import label_with_run

    labelling = label_with_run(_open(folder, device), arm, source, out, threshold=threshold, balance=balance)
    _show(as_json, labelling.to_json() | {"file": str(out)}, f"{labelling}\nPseudo-labels: {out}")


@cli.command(epilog="Example: excite report runs/mnist-sample --open")
@runs_argument
@click.option("--open", "show", is_flag=True, help="Show the page in the browser.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="The page; by default report.html in the folder."
)
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["markdown", "latex", "csv", "json"]),
    help="Print the table in this format and write no page.",
)
@json_option
def report(folders: tuple[Path, ...], show: bool, out: Path | None, wanted: str | None, as_json: bool) -> None:
    """Print the table of one run or many, and write a page that shows everything: verdict, curves, images, L.

    RUNS are run folders, or folders that hold some: those of several seeds, those of a sweep.
    """
    import webbrowser

    from excite.report import table, write_page
    from excite.report.page.page import PAGE
    from excite.report.tables.study_table import study_table
    from excite.report.verdict import conclude
    from excite.runs.collection import by_seed, collect

    if wanted and (show or out):
        raise click.UsageError("--format writes no page, which --open and --out are for.")
    runs = collect(folders)
    groups = by_seed(runs)
    study = study_table(groups)
    if wanted:
        _show(wanted == "json", study.to_json(), "" if wanted == "json" else getattr(study, wanted)())
        return
    page = write_page(runs, out or (folders[0] if len(folders) == 1 else Path()) / PAGE)
    if len(runs) == 1:
        _show(as_json, runs[0].to_json() | {"report": str(page)}, f"{table(runs[0])}\nReport: {page}")
    else:
        _show(as_json, study.to_json() | {"report": str(page)}, f"{study}\n\n{conclude(groups)}\nReport: {page}")
    if show and not webbrowser.open(page.resolve().as_uri()):
        raise ExciteError(f"No browser could be started; open {page} in one.")


@cli.command(epilog="Example: excite figure figure-2 runs/figure-2-relu-small-sweep --out figures")
@click.argument("name")
@runs_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("figures"),
    show_default=True,
    help="Folder for the files.",
)
def figure(name: str, folders: tuple[Path, ...], out: Path) -> None:
    """Draw figure-1 to figure-6 of the paper, or `estimators`, from run folders, as SVG and PNG.

    RUNS are run folders, or folders that hold some: those of several seeds, those of a sweep.
    """
    from excite.report.figures import draw
    from excite.runs.collection import collect

    for path in draw(name, collect(folders), out):
        click.echo(path)


@cli.command(name="list", epilog="Example: excite list")
@device_option
@json_option
def list_(device: str | None, as_json: bool) -> None:
    """List experiments with their cost on this machine, data sets, models, objectives, attacks and schedules."""
    from excite.runs.assemble import usable_device
    from excite.sweeps.listing import list_everything

    listing = list_everything(usable_device(device))
    _show(as_json, listing.to_json(), str(listing))


@cli.group()
def data() -> None:
    """List, fetch and verify data sets."""


@data.command(name="list", epilog="Example: excite data list")
@json_option
def data_list(as_json: bool) -> None:
    """List the data sets, and which of them are here."""
    from dataclasses import asdict

    from excite.data import listing

    statuses = listing()
    _show(as_json, [asdict(status) for status in statuses], "\n".join(map(str, statuses)))


@data.command(epilog="Example: excite data fetch cifar10")
@click.argument("name")
def fetch(name: str) -> None:
    """Fetch the data set NAME into the data directory (EXCITE_DATA, or the user's cache)."""
    from excite.data import fetch as fetch_data

    click.echo(fetch_data(name))


@data.command(epilog="Example: excite data verify cifar10")
@click.argument("name")
def verify(name: str) -> None:
    """Check the data set NAME against its known SHA-256."""
    from excite.data import verify as verify_data

    click.echo(f"{name}: {verify_data(name)}")


def main() -> None:
    """Entry point: logs go to stderr, errors become one line there and an exit code."""
    try:
        with _only_first_speaks():
            logging.getLogger("excite").addHandler(logging.StreamHandler())
            logging.getLogger("excite").setLevel(logging.INFO)
            sys.exit(cli(standalone_mode=False))
    except click.exceptions.Abort:
        click.echo("Interrupted; finished stages are kept, the same command goes on from there.", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ExciteError as error:
        concerns_all = isinstance(error, DivergedError | InterruptedRunError)
        if _is_first() or not concerns_all:
            click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _is_first() -> bool:
    """Among the processes that torchrun starts; there may be one only."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def _only_first_speaks() -> Iterator[None]:
    if _is_first():
        yield
    else:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield


def _run(experiment: str, out: Path | None, changes: tuple[str, ...], device: str | None) -> "Run":
    from excite.console import Console
    from excite.runs import load
    from excite.runs.procedure import Run

    description = load(experiment, overrides=changes)
    return Run(out or Path("runs") / description.name, description, console=Console(), device=device)


def _open(folder: Path, device: str | None) -> "Run":
    from excite.console import Console
    from excite.runs.procedure import Run

    return Run.open(folder, console=Console(), device=device)


def _show_results(folder: Path, as_json: bool) -> None:
    from excite.report import table, write_page
    from excite.runs.folder import load_results

    results = load_results(folder)
    page = write_page(results)
    _show(as_json, results.to_json() | {"report": str(page)}, f"{table(results)}\nReport: {page}")


def _show_study(folder: Path, as_json: bool, sweep: "Sweep | None" = None) -> None:
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
    _show(as_json, facts, f"{study}\n\n{conclude(groups)}\n{summary}Report: {page}")


def _show(as_json: bool, value: Any, text: str) -> None:
    click.echo(json.dumps(value, indent=2, default=str) if as_json else text)
