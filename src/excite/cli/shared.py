"""What commands share: options, the run folder that they name, and printing, text for people and JSON for machines."""

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from excite.errors import InputError, printable
from excite.quantities import number

if TYPE_CHECKING:
    from excite.console import Console
    from excite.runs import Experiment
    from excite.runs.folder import RunFolder
    from excite.runs.procedure import Run
    from excite.sweeps.sweep import Sweep


Command = TypeVar("Command", bound=Callable[..., Any])


class Output(click.Path):
    """A file or folder to write, refused before any work where it cannot be."""

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value).strip():
            self.fail("the name is empty; name a file or folder.", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
        except (OSError, ValueError) as error:
            self.fail(f"{value} cannot be a file or folder ({error}); name another.", param, ctx)
        if there != path.absolute() and not there.is_dir():
            self.fail(f"{there} is a file, so nothing can be written below it; name another folder.", param, ctx)
        if problem := _refusal(there):
            self.fail(f"{there} cannot be written ({problem}); name a folder of yours.", param, ctx)
        return path


def _refusal(there: Path) -> str:
    """Why nothing can be written there; permissions alone do not say it, as on a disk that is read-only."""
    if not there.is_dir():
        return "" if os.access(there, os.W_OK) else "permission denied"
    try:
        tempfile.TemporaryDirectory(dir=there, prefix=".excite-").cleanup()
    except OSError as error:
        return error.strerror or str(error)
    return ""


class Number(click.ParamType[float]):
    """A number between two bounds, or a fraction such as 8/255."""

    name = "number"

    def __init__(self, least: float = -math.inf, most: float = math.inf) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            found = number(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)
        if not self.least <= found <= self.most:  # not a number is in no range
            self.fail(f"{value} is not in the range from {self.least:g} to {self.most:g}.", param, ctx)
        return found


class Numbers(Number):
    """One such number, or several with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "," in value:
            return [super(Numbers, self).convert(part, param, ctx) for part in value.split(",")]
        return super().convert(value, param, ctx)


NUMBER = Number()
NUMBERS = Numbers()
SHARE = Number(0, 1)
VERBOSITY = "excite.verbosity"  # where a command's context keeps it


def _experiments(_context: click.Context, _argument: click.Parameter, begun: str) -> list[str]:
    from excite.runs import catalogue

    return [name for name in catalogue() if name.startswith(begun)]


def _arms(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    from excite.runs.arms import ARMS

    return [name for name in ARMS if name.startswith(begun)]


experiment_argument = click.argument("experiment", default="quickstart", shell_complete=_experiments)
run_folder = click.Path(path_type=Path, exists=True, file_okay=False)
run_argument = click.argument("folder", metavar="RUN", type=run_folder)
runs_argument = click.argument("folders", metavar="RUNS…", nargs=-1, required=True, type=run_folder)
out_option = click.option(
    "--out", type=Output(file_okay=False), help="Run folder; by default one named after the experiment, in runs/."
)
set_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key of the experiment."
)
estimator_option = click.option(
    "--estimator",
    help="How L is estimated: paper, authors, edge or stated where the experiment has them, or an estimator's name.",
)
force_option = click.option("--force", is_flag=True, help="Train at 1/L and 2/L even if L is not identified.")
device_option = click.option("--device", help="cpu, cuda, mps; by default an accelerator if there is one.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
arm_option = click.option(
    "--arm",
    default="baseline",
    show_default=True,
    shell_complete=_arms,
    help="baseline, poe, largest or grid:K.",
)
arms_option = click.option(
    "--arms",
    metavar="ARM,…",
    help="Of baseline, poe (1/L), largest (2/L) and grid:K (a grid search over K rates); by default the experiment's.",
)
seeds_option = click.option(
    "--seeds", type=click.IntRange(min=1), help="Repeat everything for the seeds 0, 1, … in a folder each."
)


def shard_options(command: Command) -> Command:
    """--workers, --engine and --address: who shares an evaluation."""
    workers = click.option(
        "--workers", type=click.IntRange(min=1), help="Share the images among N processes of one thread or GPU each."
    )
    engine = click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True)
    address = click.option("--address", help="A Ray cluster, for instance auto; by default one starts on this machine.")
    return workers(engine(address(command)))


def _verbosity(context: click.Context, option: click.Parameter, given: bool) -> None:
    if given and VERBOSITY in context.meta:
        raise click.UsageError("-q and -v contradict each other: give one.")
    if given:
        context.meta[VERBOSITY] = option.name


def verbosity_options(command: Command) -> Command:
    """-q and -v, which `console` heeds."""
    quiet = click.option(
        *("-q", "--quiet"), is_flag=True, expose_value=False, callback=_verbosity, help="Only the answer, and errors."
    )
    verbose = click.option(
        *("-v", "--verbose"), is_flag=True, expose_value=False, callback=_verbosity, help="Also every epoch's losses."
    )
    return quiet(verbose(command))


def refuse_ignored(parameters: Collection[str], cure: str) -> None:
    """Options that were given and would change nothing are an error: who gives one means it."""
    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in parameters and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"{' and '.join(given)} would be ignored: {cure}.", context)


def console() -> "Console":
    """Where progress goes, as much of it as -q and -v ask for."""
    from excite.console import Console

    wanted = str(click.get_current_context().meta.get(VERBOSITY))
    levels = {"quiet": logging.ERROR, "verbose": logging.DEBUG}
    logging.getLogger("excite").setLevel(levels.get(wanted, logging.INFO))
    return Console(quiet=wanted == "quiet")


def described(
    experiment: str,
    changes: tuple[str, ...],
    out: Path | None,
    *,
    estimator: str | None = None,
    seeds: int | None = None,
    arms: str | None = None,
    sizes: tuple[int, ...] | None = None,
    sweeping: bool = False,
    force: bool = False,
) -> "tuple[Experiment, Path]":
    """The experiment of this name, of this file or of this run folder, and the folder to run it in."""
    import msgspec

    from excite.runs import catalogue, load
    from excite.runs.folder import RunFolder

    there = RunFolder(Path(experiment))
    if experiment not in catalogue() and there.exists:
        if changes or estimator is not None:
            raise click.UsageError(
                f"{experiment} has its experiment: --set and --estimator need a name or a file, and a new --out."
            )
        return msgspec.structs.replace(
            there.experiment, allow_unidentified=force or there.experiment.allow_unidentified
        ), out or there.path
    presets = tuple(change for change in changes if change.startswith("estimators"))  # of which one may be chosen
    chosen = () if estimator is None else (*presets, f"lipschitz={estimator}")
    description = load(experiment, overrides=(*chosen, *changes))
    decided = {
        "lipschitz.method": ("--estimator", estimator),
        "seed": ("--seeds", seeds),
        "sweep.seed": ("--seeds", seeds),
        "arms": ("--arms", arms),
        "training.batch_size": ("--try", sizes),
    }
    options = {key: f"{option} says it; leave one of them out" for key, (option, given) in decided.items() if given}
    _refuse_lost(changes, description, options | _swept(description, sweeping))
    name = "-".join(filter(None, [description.name, estimator, "sweep" if sweeping else None]))
    if force:
        description = msgspec.structs.replace(description, allow_unidentified=True)
    return description, out or Path("runs") / name


def _swept(description: "Experiment", sweeping: bool) -> dict[str, str]:
    if not sweeping:
        return {"sweep": "`excite sweep` is what tries several values"}
    return {key: f"the sweep has its own values; --set 'sweep.{key}=[…]' gives others" for key in description.sweep}


def _refuse_lost(changes: Collection[str], description: "Experiment", decided: Mapping[str, str]) -> None:
    """A --set of a key, or of the table it is in, that is decided elsewhere: one of the two would be lost.

    A table around a swept key says more than that: a schedule its kind, and the rate at which a wanted L is looked for.
    """
    from excite.runs.experiment import flattened

    stated = flattened(description.to_json())
    for key in (change.partition("=")[0].strip() for change in changes):
        for other, why in decided.items():
            is_in_it = f"{other}.".startswith(f"{key}.") and other in stated and other not in description.sweep
            if is_in_it or f"{key}.".startswith(f"{other}."):
                raise click.UsageError(f"--set {key} would be ignored: {why}.")


def open_run(folder: Path, device: str | None) -> "Run":
    """The run in a folder, to go on with."""
    from excite.runs.procedure import Run

    return Run.open(folder, console=console(), device=device)


def read_run(folder: Path) -> "RunFolder":
    """The run in a folder, to read only."""
    from excite.runs.folder import RunFolder

    run = RunFolder(folder)
    _ = run.experiment  # a folder that is no run's says so
    return run


def show(as_json: bool, value: Any, text: str) -> None:
    click.echo(json.dumps(value, indent=2, default=str) if as_json else printable(text))


def show_results(folder: Path, as_json: bool) -> None:
    """One run: its table, its page, and for machines everything it found."""
    from excite.report.page import write_page
    from excite.report.rows import tidy
    from excite.report.tables import study_table, table
    from excite.report.verdict import conclude
    from excite.runs.folder import RunFolder

    run = RunFolder(folder)
    page = write_page(run)
    if not as_json:
        show(as_json, None, f"{table(run)}\nReport: {page}")
        return
    rows = tidy([run])
    show(as_json, study_table(rows).to_json(str(conclude(rows))) | run.to_json() | {"report": str(page)}, "")


def show_study(folder: Path, as_json: bool, sweep: "Sweep | None" = None) -> None:
    """Many runs: their table, their page, how the sweep went."""
    from excite.report.formats import prose
    from excite.report.page import PAGE, write_page
    from excite.report.rows import tidy
    from excite.report.tables import study_table
    from excite.report.verdict import conclude
    from excite.runs.collection import collect

    runs = collect([folder])
    rows = tidy(runs)
    study, verdict, page = study_table(rows), conclude(rows), write_page(runs, folder / PAGE)
    facts = study.to_json(str(verdict)) | {"report": str(page)} | (sweep.to_json() if sweep else {})
    summary = f"{sweep}\n" if sweep else ""
    show(as_json, facts, f"{study}\n\n{prose(str(verdict))}\n{summary}Report: {page}")
