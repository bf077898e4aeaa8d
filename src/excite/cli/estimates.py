"""Commands that ask how large L is and what follows from it: estimate, certify, batch-size."""

from pathlib import Path

import click

from excite.cli.shared import (
    SHARE,
    arm_option,
    console,
    described,
    device_option,
    json_option,
    open_run,
    out_option,
    read_run,
    refuse_ignored,
    run_argument,
    set_option,
    show,
    verbosity_options,
)


@click.command(epilog="Example: excite estimate runs/mnist-sample --compare")
@run_argument
@click.option("--compare", is_flag=True, help="Every method side by side, with its 1/L and 2/L.")
@click.option(
    "--train", "may_train", is_flag=True, help="Make an estimate that is missing, with the trainings it needs."
)
@device_option
@json_option
def estimate(folder: Path, compare: bool, may_train: bool, device: str | None, as_json: bool) -> None:
    """How large is L for the experiment of a run folder? Reads what was estimated; --train estimates what was not."""
    from excite.report import estimates_table
    from excite.runs.missing import needed_estimate, stored_estimates

    if may_train:
        opened = open_run(folder, device)
        opened.estimates() if compare else opened.estimate()
    else:
        refuse_ignored(["device"], "an estimate that is there is read; add --train to make one")
    run = read_run(folder)
    answer = needed_estimate(run)
    if compare:
        found = stored_estimates(run)
        values = {name: answer if isinstance(answer, str) else answer.to_json() for name, answer in found.items()}
        show(as_json, values, estimates_table(found, run))
    else:
        show(as_json, answer.to_json(), str(answer))


@click.command(epilog="Example: excite certify runs/mnist-sample --arm poe")
@run_argument
@arm_option
@json_option
def certify(folder: Path, arm: str, as_json: bool) -> None:
    """Was a training persistently excited? Per epoch: acuteness, the proof's inequality, rates against 1/L and 2/L."""
    from excite.report import excitation_facts, excitation_table
    from excite.runs.arms import OWN, arm_named
    from excite.runs.missing import needed_estimate, needed_trace

    run = read_run(folder)
    chosen = arm_named(arm)
    trace, found = needed_trace(run, chosen.name), needed_estimate(run, chosen.estimator or OWN)
    show(as_json, excitation_facts(trace, found), excitation_table(trace, found))


@click.command(name="batch-size", epilog="Example: excite batch-size mnist-sample --try 64 256 1000 --threshold 0.9")
@click.argument("experiment")
@click.argument("sizes", nargs=-1, type=click.IntRange(min=1), required=True)
@click.option("--try", is_flag=True, required=True, expose_value=False, help="Stands before the sizes.")
@click.option(
    "--threshold", type=SHARE, help="The clean accuracy to reach; by default the paper's, 0.8, or 0.6 on CIFAR-100."
)
@out_option
@set_option
@device_option
@verbosity_options
@json_option
def batch_size(
    experiment: str,
    sizes: tuple[int, ...],
    threshold: float | None,
    out: Path | None,
    changes: tuple[str, ...],
    device: str | None,
    as_json: bool,
) -> None:
    """Choose a batch size as the paper does: the smallest at which Assumption 2 holds, then down to enough accuracy.

    Trains the baseline at each of SIZES, in a folder each.
    """
    from excite.runs.batch_size import check_sizes, try_batch_sizes
    from excite.runs.collection import check_not_a_run
    from excite.runs.experiment import with_values
    from excite.runs.procedure import Run

    description, _ = described(experiment, changes, out, sizes=sizes)
    parent, speaking = out or Path("runs") / f"{Path(experiment).stem}-batch-size", console()
    check_not_a_run(parent)
    check_sizes(description, sizes)
    tried = {size: with_values(description, {"training.batch_size": size}) for size in sizes}
    choice = try_batch_sizes(
        {size: Run(parent / str(size), each, console=speaking, device=device) for size, each in tried.items()},
        threshold,
    )
    show(as_json, choice.to_json(), str(choice))
