"""The command line: one function per command, no logic; torch is imported only by the commands that need it."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import excite
from excite.errors import ExciteError, InputError
from excite.quantities import number

if TYPE_CHECKING:
    from excite.experiments.run import Run


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
run_argument = click.argument("folder", metavar="RUN", type=click.Path(path_type=Path, exists=True, file_okay=False))
out_option = click.option("--out", type=click.Path(path_type=Path), help="Run folder; by default runs/<experiment>.")
set_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key of the experiment."
)
device_option = click.option("--device", help="cpu, cuda, mps; by default an accelerator if there is one.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
arm_option = click.option(
    "--arm", type=click.Choice(["baseline", "poe", "largest"]), default="baseline", show_default=True, help="Which arm."
)


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(excite.__version__, prog_name="excite")
def cli() -> None:
    """Learning rates that make neural networks robust: find L, train at 1/L and 2/L, attack, compare."""


@cli.command(epilog="Example: excite run mnist-sample --set training.epochs=5 --out runs/short")
@experiment_argument
@out_option
@set_option
@device_option
@json_option
def run(experiment: str, out: Path | None, changes: tuple[str, ...], device: str | None, as_json: bool) -> None:
    """Run the paper's whole procedure: baseline, L, the 1/L and 2/L arms, attacks, report.

    EXPERIMENT is a name from `excite list` or a TOML file. A stage that is finished is not run again.
    """
    results = _run(experiment, out, changes, device).all()
    _show_results(results.folder, as_json)


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
    from excite.experiments.results import load_arm

    opened = _run(experiment, out, changes, device)
    opened.train(arm)
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
    from excite.experiments.batch_size import try_batch_sizes

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
    from excite.experiments.attacking import arm_of_run, attack_target, named_attacks, stranger

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


@cli.command(epilog="Example: excite report runs/mnist-sample")
@run_argument
@json_option
def report(folder: Path, as_json: bool) -> None:
    """Print the table of a run folder and write its report.html again."""
    _show_results(folder, as_json)


@cli.command(name="list", epilog="Example: excite list")
@json_option
def list_(as_json: bool) -> None:
    """List experiments, data sets, models, objectives, attacks and schedules."""
    from excite.experiments.listing import everything

    names = everything()
    _show(as_json, names, "\n".join(f"{kind}: {', '.join(known)}" for kind, known in names.items()))


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
    logging.getLogger("excite").addHandler(logging.StreamHandler())
    logging.getLogger("excite").setLevel(logging.INFO)
    try:
        sys.exit(cli(standalone_mode=False))
    except click.exceptions.Abort:
        click.echo("Interrupted; finished stages are kept, the same command goes on from there.", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ExciteError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _run(experiment: str, out: Path | None, changes: tuple[str, ...], device: str | None) -> "Run":
    from excite.console import Console
    from excite.experiments import load
    from excite.experiments.run import Run

    description = load(experiment, overrides=changes)
    return Run(out or Path("runs") / description.name, description, console=Console(), device=device)


def _open(folder: Path, device: str | None) -> "Run":
    from excite.console import Console
    from excite.experiments.run import Run

    return Run.open(folder, console=Console(), device=device)


def _show_results(folder: Path, as_json: bool) -> None:
    from excite.experiments.results import load_results
    from excite.report import table, write_page

    results = load_results(folder)
    page = write_page(results)
    _show(as_json, results.to_json() | {"report": str(page)}, f"{table(results)}\nReport: {page}")


def _show(as_json: bool, value: Any, text: str) -> None:
    click.echo(json.dumps(value, indent=2, default=str) if as_json else text)
