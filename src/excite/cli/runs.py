"""Commands that train: run, sweep, train."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from excite.cli.shared import (
    Output,
    arm_option,
    arms_option,
    console,
    described,
    device_option,
    estimator_option,
    experiment_argument,
    force_option,
    json_option,
    out_option,
    refuse_ignored,
    seeds_option,
    set_option,
    show,
    show_results,
    show_study,
    verbosity_options,
)
from excite.errors import ExciteError

if TYPE_CHECKING:
    from excite.execution import EngineName


@click.command(epilog="Example: excite run mnist-sample --arms baseline,poe,largest,grid:5 --seeds 5 --out runs/five")
@experiment_argument
@arms_option
@seeds_option
@estimator_option
@force_option
@click.option("--workers", type=click.IntRange(min=1), help="Share each attack among N processes of one thread.")
@click.option("--tensorboard", is_flag=True, help="Also write event files, to tensorboard/ in the run folder.")
@out_option
@set_option
@device_option
@verbosity_options
@json_option
def run(
    experiment: str,
    arms: str | None,
    seeds: int | None,
    estimator: str | None,
    force: bool,
    workers: int | None,
    tensorboard: bool,
    out: Path | None,
    changes: tuple[str, ...],
    device: str | None,
    as_json: bool,
) -> None:
    """Run the paper's whole procedure: baseline, L, the 1/L and 2/L arms, attacks, report.

    EXPERIMENT is a name from `excite list`, a TOML file, or a run folder to go on with. A stage that is finished is not
    run again: a stopped run goes on, and arms and seeds can be added.
    """
    from excite.console import Placed
    from excite.execution import Shards
    from excite.runs.arms import arm_names
    from excite.runs.collection import run_folders
    from excite.runs.procedure import Run

    if tensorboard:
        from excite.integrations.tensorboard import write_run  # where it is missing, that is said before any work
        from excite.runs.folder import RunFolder
    description, folder = described(experiment, changes, out, estimator=estimator, seeds=seeds, arms=arms, force=force)
    chosen = () if arms is None else arm_names(arms)
    speaking, folders = console(), run_folders(description, folder, seeds)
    for count, (path, each) in enumerate(folders.items(), 1):
        placed = Placed(speaking, f"seed {count} of {seeds}") if seeds else speaking
        Run(path, each, console=placed, device=device, arms=chosen).all(chosen, Shards(workers))
        if tensorboard:
            write_run(RunFolder(path))
    if seeds is None:
        show_results(folder, as_json)
    else:
        show_study(folder, as_json)


@click.command(epilog="Example: excite sweep mnist-sample --seeds 5 --arms baseline,poe --workers 2")
@click.argument("experiment")
@arms_option
@seeds_option
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="Jobs at a time; by default one per GPU, or per core.")
@click.option("--shards", type=click.IntRange(min=1), help="Share the attack of each job among N processes or tasks.")
@click.option("--address", help="A Ray cluster to use, for instance auto; by default ray starts on this machine.")
@click.option("--out", type=Output(file_okay=False), help="Holds the run folders; by default runs/<experiment>-sweep.")
@estimator_option
@force_option
@set_option
@device_option
@verbosity_options
@json_option
def sweep(
    experiment: str,
    arms: str | None,
    seeds: int | None,
    engine: "EngineName",
    workers: int | None,
    shards: int | None,
    address: str | None,
    out: Path | None,
    estimator: str | None,
    force: bool,
    changes: tuple[str, ...],
    device: str | None,
    as_json: bool,
) -> None:
    """Run every combination of an experiment's [sweep] table, seed and arm, as independent jobs.

    What is finished is not run again, also not by another sweep in the same folder at the same time. A killed job is
    started again and goes on from its checkpoint. Exits with 1 if a job failed; a diverged training is a result.
    """
    from excite.execution import Shards
    from excite.runs.arms import arm_names
    from excite.sweeps.sweep import combinations
    from excite.sweeps.sweep import sweep as sweep_runs

    if engine != "ray":
        refuse_ignored(["address"], "it names a Ray cluster; add --engine ray")
    if address:
        refuse_ignored(["workers"], "a cluster has its own; leave it or --address out")
    description, folder = described(
        experiment, changes, out, estimator=estimator, seeds=seeds, arms=arms, sweeping=True, force=force
    )
    finished = sweep_runs(
        combinations(description, folder, seeds),
        folder,
        console=console(),
        arms=() if arms is None else arm_names(arms),
        device=device,
        jobs_in=Shards(workers, engine, address),
        shards=shards,
    )
    show_study(folder, as_json, finished)
    if finished.failed:
        failed = f"{len(finished.failed)} of {len(finished.outcomes)} jobs failed"
        raise ExciteError(f"{failed}. The same command tries them again.")


@click.command(epilog="Example: excite train mnist-sample --set training.schedule.rate=0.2 --out runs/fast")
@experiment_argument
@arm_option
@force_option
@out_option
@set_option
@device_option
@verbosity_options
@json_option
def train(
    experiment: str,
    arm: str,
    force: bool,
    out: Path | None,
    changes: tuple[str, ...],
    device: str | None,
    as_json: bool,
) -> None:
    """Train one arm of an experiment; 1/L and 2/L are estimated first if they are needed."""
    from excite.runs.arms import arm_named
    from excite.runs.folder import RunFolder
    from excite.runs.procedure import Run
    from excite.training.distributed import launched

    arm = arm_named(arm).name
    with launched() as ranks:
        description, folder = described(experiment, changes, out, force=force)
        Run(folder, description, console=console(), device=device, arms=[arm]).train(arm, ranks)
    result = RunFolder(folder).arm(arm)
    show(as_json, result.to_json(), f"{result}\nCheckpoint: {folder / arm}")
