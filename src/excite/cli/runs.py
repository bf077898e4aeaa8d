"""Commands that train: run, sweep, train, batch-size."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from excite.cli import options
from excite.cli.options import SHARE, Output, console, refuse_ignored, resolve_experiment, show
from excite.cli.reports import show_report
from excite.errors import ExciteError

if TYPE_CHECKING:
    from excite.execution import EngineName


@click.command(epilog="Example: excite run mnist-sample --arms baseline,poe,largest,grid:5 --seeds 5 --out runs/five")
@options.experiment
@options.arms
@options.seeds
@options.estimator
@options.force
@click.option("--workers", type=options.POSITIVE, help="Processes that share each attack, with one thread each.")
@click.option("--tensorboard", is_flag=True, help="Also write event files to tensorboard/ in the run folder.")
@options.out
@options.changes
@options.work
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
    """Run the paper's whole procedure: baseline, L, training at 1/L and 2/L, attacks, report.

    EXPERIMENT is a name from `excite list`, a TOML file, or a run folder to continue. Finished stages are not repeated:
    run the command again to resume an interrupted run, or to add arms and seeds.
    """
    from excite.console import Placed
    from excite.execution import Shards
    from excite.runs.arms import arm_names
    from excite.runs.collection import collect, run_folders
    from excite.runs.folder import RunFolder
    from excite.runs.procedure import Run

    if tensorboard:
        from excite.integrations.tensorboard import write_run  # fails before any work if tensorboard is missing
    resolved, folder = resolve_experiment(
        experiment, changes, out, estimator=estimator, seeds=seeds, arms=arms, force=force
    )
    names = () if arms is None else arm_names(arms)
    speaker = console()
    for count, (path, seeded) in enumerate(run_folders(resolved, folder, seeds).items(), 1):
        placed = Placed(speaker, f"seed {count} of {seeds}") if seeds else speaker
        Run(path, seeded, console=placed, device=device, arms=names).all(names, Shards(workers))
        if tensorboard:
            write_run(RunFolder(path))
    runs = collect([folder]) if seeds else [RunFolder(folder)]
    show_report(runs, folder, as_json, {} if seeds else runs[0].to_json())


@click.command(epilog="Example: excite sweep mnist-sample --seeds 5 --arms baseline,poe --workers 2")
@click.argument("experiment")
@options.arms
@options.seeds
@options.engine
@click.option("--workers", type=options.POSITIVE, help="Jobs at a time; by default one per GPU or core.")
@click.option("--shards", type=options.POSITIVE, help="Processes or tasks that share the attack of each job.")
@options.address
@click.option(
    "--out", type=Output(file_okay=False), help="Parent of the run folders; by default runs/<experiment>-sweep."
)
@options.estimator
@options.force
@options.changes
@options.work
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

    Finished jobs are not repeated, and two sweeps can share a folder. A killed job restarts from its checkpoint.
    Exits with 1 if a job failed; a diverged training is a result, not a failure.
    """
    from excite.execution import Shards
    from excite.runs.arms import arm_names
    from excite.runs.collection import collect
    from excite.sweeps import combinations
    from excite.sweeps import sweep as sweep_runs

    if engine != "ray":
        refuse_ignored(["address"], "it names a Ray cluster; add --engine ray")
    if address:
        refuse_ignored(["workers"], "a cluster has its own; leave out --workers or --address")
    resolved, folder = resolve_experiment(
        experiment, changes, out, estimator=estimator, seeds=seeds, arms=arms, sweeping=True, force=force
    )
    finished = sweep_runs(
        combinations(resolved, folder, seeds),
        folder,
        console=console(),
        arms=() if arms is None else arm_names(arms),
        device=device,
        jobs_in=Shards(workers, engine, address),
        shards=shards,
    )
    show_report(collect([folder]), folder, as_json, finished.to_json(), f"{finished}\n")
    if finished.failed:
        failed = f"{len(finished.failed)} of {len(finished.outcomes)} jobs failed"
        raise ExciteError(f"{failed}. Run the command again to retry them.")


@click.command(epilog="Example: excite train mnist-sample --set training.schedule.rate=0.2 --out runs/fast")
@options.experiment
@options.arm
@options.force
@options.out
@options.changes
@options.work
def train(
    experiment: str,
    arm: str,
    force: bool,
    out: Path | None,
    changes: tuple[str, ...],
    device: str | None,
    as_json: bool,
) -> None:
    """Train one arm of an experiment; L is estimated first if the arm needs it."""
    from excite.runs.arms import arm_named
    from excite.runs.folder import RunFolder
    from excite.runs.procedure import Run
    from excite.training.distributed import launched

    name = arm_named(arm).name
    with launched() as ranks:
        resolved, folder = resolve_experiment(experiment, changes, out, force=force)
        Run(folder, resolved, console=console(), device=device, arms=[name]).train(name, ranks)
    result = RunFolder(folder).arm(name)
    show(as_json, result.to_json(), f"{result}\nCheckpoint: {folder / name}")


@click.command(name="batch-size", epilog="Example: excite batch-size mnist-sample --try 64 256 1000 --threshold 0.9")
@click.argument("experiment")
@click.argument("sizes", nargs=-1, type=options.POSITIVE, required=True)
@click.option("--try", is_flag=True, required=True, expose_value=False, help="Followed by the batch sizes.")
@click.option(
    "--threshold", type=SHARE, help="Clean accuracy to reach; by default the paper's, 0.8, or 0.6 on CIFAR-100."
)
@options.out
@options.changes
@options.work
def batch_size(
    experiment: str,
    sizes: tuple[int, ...],
    threshold: float | None,
    out: Path | None,
    changes: tuple[str, ...],
    device: str | None,
    as_json: bool,
) -> None:
    """Choose a batch size as the paper does: the smallest with Assumption 2, then smaller until accuracy is reached.

    Trains the baseline at each of SIZES, each in its own folder.
    """
    from excite.runs.collection import check_not_a_run
    from excite.runs.experiment import with_values
    from excite.runs.procedure import Run
    from excite.sweeps import check_batch_sizes, try_batch_sizes

    resolved, _ = resolve_experiment(experiment, changes, out, sizes=sizes)
    parent, speaker = out or Path("runs") / f"{Path(experiment).stem}-batch-size", console()
    check_not_a_run(parent)
    check_batch_sizes(resolved, sizes)
    sized = {size: with_values(resolved, {"training.batch_size": size}) for size in sizes}
    runs = {size: Run(parent / str(size), each, console=speaker, device=device) for size, each in sized.items()}
    choice = try_batch_sizes(runs, threshold)
    show(as_json, choice.to_json(), str(choice))
