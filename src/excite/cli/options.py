"""What commands share: options, the experiment or run folder that they name, and printing."""

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
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

Command = TypeVar("Command", bound=Callable[..., Any])


class Output(click.Path):
    """A file or folder to write; refused before any work if it cannot be written."""

    def __init__(self, **kinds: bool) -> None:
        super().__init__(**kinds, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value).strip():
            self.fail("the name is empty.", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            existing = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
            is_replaced = existing == path.absolute() and existing.is_file()
            tempfile.TemporaryFile(dir=existing.parent if is_replaced else existing).close()
        except OSError as error:
            self.fail(f"{value} cannot be written: {error.strerror}. Name another file or folder.", param, ctx)
        return path


class Number(click.ParamType[float]):
    """A number between two bounds, or a fraction such as 8/255; if `several`, also numbers separated by commas."""

    name = "number"

    def __init__(self, least: float = -math.inf, most: float = math.inf, *, several: bool = False) -> None:
        self.least, self.most, self.several = least, most, several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.several and isinstance(value, str) and "," in value:
            return [self.convert(part, param, ctx) for part in value.split(",")]
        try:
            converted = number(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)
        if not self.least <= converted <= self.most:  # also refuses NaN
            self.fail(f"{value} is not in the range from {self.least:g} to {self.most:g}.", param, ctx)
        return converted


NUMBER = Number()
NUMBERS = Number(several=True)
SHARE = Number(0, 1)
TRACKERS = ("trackio", "wandb", "mlflow", "tensorboard")
VERBOSITY, LOG_FILE = "excite.verbosity", "excite.log-file"  # keys in the context of a command
DECIDES = {  # keys of an experiment, and the option that sets each
    "lipschitz.method": "--estimator",
    "seed": "--seeds",
    "sweep.seed": "--seeds",
    "arms": "--arms",
    "training.batch_size": "--try",
}


def _experiments(_context: click.Context, _argument: click.Parameter, begun: str) -> list[str]:
    from excite.runs import catalogue

    return [name for name in catalogue() if name.startswith(begun)]


def _arms(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    from excite.runs.arms import ARMS

    return [name for name in ARMS if name.startswith(begun)]


def _verbosity(context: click.Context, option: click.Parameter, given: bool) -> None:
    if given and VERBOSITY in context.meta:
        raise click.UsageError("-q and -v contradict each other; pass one of them.")
    if given:
        context.meta[VERBOSITY] = option.name


def processes() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def is_first() -> bool:
    """Whether this is the first process of torchrun. Without WORLD_SIZE, RANK belongs to a cluster and is ignored."""
    return processes() == 1 or int(os.environ.get("RANK") or 0) == 0


def _log_to(context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is not None and is_first():
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logging.getLogger("excite").addHandler(handler)
        context.meta[LOG_FILE] = handler


def close_log_file() -> None:
    logger = logging.getLogger("excite")
    for handler in [each for each in logger.handlers if isinstance(each, logging.FileHandler)]:
        logger.removeHandler(handler)
        handler.close()


RUN_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
POSITIVE = click.IntRange(min=1)

experiment = click.argument("experiment", default="quickstart", shell_complete=_experiments)
run = click.argument("folder", metavar="RUN", type=RUN_FOLDER)
runs = click.argument("folders", metavar="RUNS…", nargs=-1, required=True, type=RUN_FOLDER)
runs_if_any = click.argument("folders", metavar="[RUNS]…", nargs=-1, type=RUN_FOLDER)
out = click.option("--out", type=Output(file_okay=False), help="Run folder; by default runs/<experiment>.")
changes = click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a setting; repeatable.")
estimator = click.option("--estimator", help="Estimator of L: a preset, such as paper, or a name from `excite list`.")
force = click.option("--force", is_flag=True, help="Train at 1/L and 2/L even if L is not identified.")
device = click.option("--device", help="cpu, cuda or mps; by default an accelerator if there is one.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
arm = click.option("--arm", default="baseline", show_default=True, shell_complete=_arms, help="Such as poe, grid:5.")
arms = click.option("--arms", metavar="ARM,…", help="Such as baseline,poe,grid:5; by default the experiment's.")
seeds = click.option("--seeds", type=POSITIVE, metavar="N", help="Run the seeds 0 to N-1, each in its own folder.")
log = click.option("--log", type=click.Choice(TRACKERS), help="When done, also log rates, losses, L and figures there.")
engine = click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True)
address = click.option("--address", help="Ray cluster, such as auto; by default Ray starts on this machine.")


def work(command: Command) -> Command:
    """--device, -q, -v, --log-file and --json: the options of every command that trains or attacks."""
    flag: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _verbosity}
    quiet = click.option("-q", "--quiet", help="Print only the result and errors.", **flag)
    verbose = click.option("-v", "--verbose", help="Also print the loss of every epoch.", **flag)
    log_file = click.option(
        "--log-file",
        type=Output(dir_okay=False),
        expose_value=False,
        callback=_log_to,
        help="Also append messages, progress and errors to this file, with their times.",
    )
    return device(quiet(verbose(log_file(as_json(command)))))


def refuse_ignored(parameters: Collection[str], cure: str) -> None:
    """Refuse options that were given but would have no effect."""
    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in parameters and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"{' and '.join(given)} would be ignored: {cure}.", context)


def logger(tracker: str | None) -> Callable[[Path], None]:
    """Return a function that logs a run folder with the tracker, if there is one; its package must be installed."""
    if tracker is None:
        return lambda _folder: None
    from excite.integrations.loggers import require, write_run
    from excite.runs.folder import RunFolder

    require(tracker)
    return lambda folder: click.echo(f"Show the log: {write_run(RunFolder(folder), tracker)}", err=True)


def console() -> "Console":
    """Make the console that shows progress, as much of it as -q and -v ask for."""
    from excite.console import Console

    given = click.get_current_context().meta
    verbosity = str(given.get(VERBOSITY))
    levels = {"quiet": logging.ERROR, "verbose": logging.DEBUG}
    logging.getLogger("excite").setLevel(levels.get(verbosity, logging.INFO))
    return Console(quiet=verbosity == "quiet", log_file=given.get(LOG_FILE))


@dataclass(frozen=True)
class Chosen:
    """What a command runs: an experiment and its run folder; the arms are () where the experiment's own are meant."""

    experiment: "Experiment"
    folder: Path
    arms: tuple[str, ...]
    seeds: int | None


def resolve_experiment(
    name: str,
    *,
    changes: tuple[str, ...],
    out: Path | None,
    estimator: str | None = None,
    seeds: int | None = None,
    arms: str | None = None,
    sizes: tuple[int, ...] | None = None,
    sweeping: bool = False,
    force: bool = False,
) -> Chosen:
    """Return the experiment that a name, a TOML file or a run folder describes, and what the options choose of it."""
    from msgspec.structs import replace

    from excite.runs import catalogue, load
    from excite.runs.arms import arm_names
    from excite.runs.folder import RunFolder

    existing = RunFolder(Path(name))
    if name not in catalogue() and existing.path.is_dir() and existing.path.suffix != ".toml":
        if changes or estimator is not None:
            raise click.UsageError(
                f"The experiment of {name} cannot change: --set and --estimator need the name or file of an "
                "experiment, and a new --out."
            )
        resolved, folder = existing.experiment, existing.path
    else:
        presets = tuple(change for change in changes if change.startswith("estimators"))  # --estimator may name one
        chosen = () if estimator is None else (*presets, f"lipschitz={estimator}")
        resolved = load(name, overrides=(*chosen, *changes))
        options = {"--estimator": estimator, "--seeds": seeds, "--arms": arms, "--try": sizes}
        _refuse_decided(changes, resolved, [option for option, value in options.items() if value], sweeping=sweeping)
        folder = Path("runs") / "-".join(filter(None, [resolved.name, estimator, "sweep" if sweeping else None]))
    resolved = replace(resolved, allow_unidentified=force or resolved.allow_unidentified)
    return Chosen(resolved, out or folder, () if arms is None else arm_names(arms), seeds)


def _refuse_decided(
    changes: Collection[str], resolved: "Experiment", options: Collection[str], *, sweeping: bool
) -> None:
    """Refuse a --set of a key, or of a table that contains it, if one of `options` or the sweep decides its value.

    A table around a swept key is accepted, because it sets more than that key.
    """
    from excite.runs.experiment import flattened

    reasons = {key: f"{option} sets it; leave one of them out" for key, option in DECIDES.items() if option in options}
    if sweeping:
        reasons |= {key: f"the sweep sets it; change it with --set 'sweep.{key}=[…]'" for key in resolved.sweep}
    else:
        reasons["sweep"] = "only `excite sweep` runs several values"
    stated = flattened(resolved.to_json())
    for key in (change.partition("=")[0].strip() for change in changes):
        for other, reason in reasons.items():
            contains = f"{other}.".startswith(f"{key}.") and other in stated and other not in resolved.sweep
            if contains or f"{key}.".startswith(f"{other}."):
                raise click.UsageError(f"--set {key} would be ignored: {reason}.")


def open_run(folder: Path, device: str | None) -> "Run":
    """Open a run folder to continue the run."""
    from excite.runs.procedure import Run

    return Run.open(folder, console=console(), device=device)


def read_run(folder: Path) -> "RunFolder":
    """Open a run folder to read it."""
    from excite.runs.folder import RunFolder

    run = RunFolder(folder)
    _ = run.experiment  # fails if the folder is not a run folder
    return run


def show(as_json: bool, value: Any, text: str) -> None:
    click.echo(json.dumps(value, indent=2, default=str) if as_json else printable(text))
