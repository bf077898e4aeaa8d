"""Commands on a trained run folder (estimate, certify, attack, pseudo-label, export, verify) and on data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excite.cli import options
from excite.cli.options import (
    NUMBER,
    NUMBERS,
    POSITIVE,
    SHARE,
    Output,
    console,
    open_run,
    read_run,
    refuse_ignored,
    show,
)
from excite.errors import CorruptFileError

if TYPE_CHECKING:
    from excite.execution import EngineName


@click.command(epilog="Example: excite estimate runs/mnist-sample --compare")
@options.run
@click.option("--compare", is_flag=True, help="Show every estimator side by side, with its 1/L and 2/L.")
@click.option("--train", "may_train", is_flag=True, help="Make missing estimates, with the trainings that they need.")
@options.device
@options.as_json
def estimate(folder: Path, compare: bool, may_train: bool, device: str | None, as_json: bool) -> None:
    """Show the L of a run. Reads stored estimates; --train makes missing ones."""
    from excite.report import estimates_table
    from excite.runs.folder import needed_estimate, stored_estimates

    if may_train:
        opened = open_run(folder, device)
        opened.estimates() if compare else opened.estimate()
    else:
        refuse_ignored(["device"], "stored estimates are read; add --train to make missing ones")
    run = read_run(folder)
    estimate_of_run = needed_estimate(run)
    if compare:
        estimates = stored_estimates(run)
        values = {name: answer if isinstance(answer, str) else answer.to_json() for name, answer in estimates.items()}
        show(as_json, values, estimates_table(estimates, run))
    else:
        show(as_json, estimate_of_run.to_json(), str(estimate_of_run))


@click.command(epilog="Example: excite certify runs/mnist-sample --arm poe")
@options.run
@options.arm
@options.as_json
def certify(folder: Path, arm: str, as_json: bool) -> None:
    """Show whether a training was persistently excited: for every epoch, the assumptions and the rates 1/L and 2/L."""
    from excite.report import excitation_facts, excitation_table
    from excite.runs.arms import OWN, arm_named
    from excite.runs.folder import needed_estimate, needed_trace

    run, chosen = read_run(folder), arm_named(arm)
    trace, stored = needed_trace(run, chosen.name), needed_estimate(run, chosen.estimator or OWN)
    show(as_json, excitation_facts(trace, stored), excitation_table(trace, stored))


@click.command(epilog="Example: excite attack runs/mnist-sample --arm poe --with pgd --eps 0.1 --examples 200")
@click.argument("target", metavar="[RUN_OR_WEIGHTS]", type=click.Path(path_type=Path, exists=True), required=False)
@options.arm
@click.option("--with", "names", multiple=True, help="pgd, autoattack, square, …; by default the experiment's attacks.")
@click.option("--eps", type=NUMBERS, help="Radius, such as 8/255; several, such as 1/255,2/255,4/255, give a curve.")
@click.option("--step", type=NUMBER, help="Step size of PGD; by default 2.5 ε / steps.")
@click.option("--steps", type=POSITIVE, help="Steps of PGD.")
@click.option("--restarts", type=POSITIVE, help="Restarts; with several, PGD starts at random points.")
@click.option("--norm", type=click.Choice(["linf", "l2"]), help="Norm of the perturbation.")
@click.option("--examples", type=POSITIVE, help="Attack a random subset of the test images.")
@click.option("--subset-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the subset.")
@click.option("--model", help="Your own model, package.module:factory, or the name of a model of excite.")
@click.option("--weights", type=click.Path(path_type=Path), help="Weights of --model: .safetensors, or .pt of tensors.")
@click.option("--data", "data_name", default="cifar10", show_default=True, help="Test images for --model.")
@click.option("--batch-size", type=POSITIVE, default=128, show_default=True, help="Images attacked together.")
@click.option("--workers", type=POSITIVE, help="Processes that share the images, each with one thread or GPU.")
@options.engine
@options.address
@options.work
def attack(
    target: Path | None,
    arm: str,
    names: tuple[str, ...],
    examples: int | None,
    subset_seed: int,
    model: str | None,
    weights: Path | None,
    data_name: str,
    batch_size: int,
    workers: int | None,
    engine: "EngineName",
    address: str | None,
    device: str | None,
    as_json: bool,
    **attack_options: Any,
) -> None:
    """Attack a trained arm of a run folder, or your own model with --model.

    Without --with, show the result of the run's own attacks; they are made if they are missing. Results of attacks
    named with --with are saved in a separate file in the arm's folder, or next to the weights. An interrupted attack
    resumes when the command is run again.
    """
    from excite.attacks.given import named_attacks
    from excite.evaluation import Shards
    from excite.runs.arms import arm_named
    from excite.runs.folder import needed_model
    from excite.runs.stages.attack import attack_target, own_model, target_of

    if engine != "ray":
        refuse_ignored(["address"], "it names a Ray cluster; add --engine ray")
    shards = Shards(workers, engine, address)
    if examples is None:
        refuse_ignored(["subset_seed"], "all test images are attacked; add --examples N")
    if model is None:
        refuse_ignored(["weights", "data_name"], "a run folder has its own; add --model for your own model")
    if not names:
        attacking = [*attack_options, "examples", "subset_seed", "model"]
        refuse_ignored(attacking, "the run's own attacks have theirs; add --with, for instance --with pgd")
        refuse_ignored(["batch_size"], "the experiment's attack_batch counts; add --with, for instance --with pgd")
    if model:
        refuse_ignored(["arm"], "--model has no arms; leave it out")
        if target and weights:
            raise click.UsageError(f"{target} and --weights {weights} both name weights; name one file.")
        if not (weights := weights or target):
            raise click.UsageError("--model needs weights: add --weights FILE.")
        chosen = own_model(model, weights, data_name=data_name, device=device)
    elif target is None or target.is_file():
        raise click.UsageError("Name a run folder, or --model, --weights and --with for your own model.")
    else:
        run, name = open_run(target, device), arm_named(arm).name
        if not names:
            if run.files.arm(name).evaluation_file.exists():
                refuse_ignored(["workers", "engine", "address"], "the stored result is shown; leave it out")
            evaluation = run.attack(name, shards)
            show(as_json, evaluation.to_json(), str(evaluation))
            return
        chosen = target_of(run.parts, needed_model(run.files, name))
    attacks = named_attacks(names, attack_options)
    evaluation, file = attack_target(
        chosen,
        attacks,
        console=console(),
        examples=examples,
        subset_seed=subset_seed,
        batch_size=batch_size,
        shards=shards,
    )
    show(as_json, evaluation.to_json() | {"file": str(file)}, f"{evaluation}\nSaved: {file}")


@click.command(
    name="pseudo-label",
    epilog="Example: excite pseudo-label runs/teacher --data cifar10-10k+40k --out pseudo.npz --threshold 0.9",
)
@options.run
@options.arm
@click.option("--data", "source", required=True, help="A data set with hidden labels, or an .npz file of images.")
@click.option("--out", type=Output(dir_okay=False), required=True, help="The .npz file to write.")
@click.option("--threshold", type=SHARE, default=0.0, show_default=True, help="Minimum confidence of a label.")
@click.option("--balance", is_flag=True, help="Keep the same number of labels per class: the most confident.")
@options.work
def pseudo_label(
    folder: Path, arm: str, source: str, out: Path, threshold: float, balance: bool, device: str | None, as_json: bool
) -> None:
    """Label unlabelled images with a trained arm, for self-training: set data.unlabelled to the file."""
    from excite.runs.arms import arm_named
    from excite.runs.stages.teach import label_with_run

    name = arm_named(arm).name
    labelling = label_with_run(open_run(folder, device), name, source, out, threshold=threshold, balance=balance)
    show(as_json, labelling.to_json() | {"file": str(out)}, f"{labelling}\nPseudo-labels: {out}")


@click.command(epilog="Example: excite export runs/mnist-sample --arm poe --to robustbench")
@options.run
@click.option("--to", "target", type=click.Choice(["robustbench", "tensorboard"]), required=True, help="Target format.")
@options.arm
@click.option("--out", type=Output(file_okay=False), help="By default exports/<experiment>-<arm>, or RUN/tensorboard.")
@options.as_json
def export(folder: Path, target: str, arm: str, out: Path | None, as_json: bool) -> None:
    """Export a trained arm for RobustBench's leaderboard, or the curves of all arms for TensorBoard."""
    if target == "tensorboard":
        refuse_ignored(["arm"], "TensorBoard shows every arm; leave it out")
        from excite.integrations import tensorboard

        written = tensorboard.write_run(read_run(folder), out)
        hint = f"tensorboard --logdir {written}"
    else:
        from excite.integrations import robustbench
        from excite.runs.arms import arm_named

        written = robustbench.export(read_run(folder), arm_named(arm).name, out)
        hint = f'excite.integrations.robustbench.load_model("{written}")'
    show(as_json, {"folder": str(written)}, f"{written}\n{hint}")


@click.command(epilog="Example: excite verify runs/mnist-sample")
@options.run
@click.option("--accept", is_flag=True, help="Accept files that were edited on purpose.")
@options.as_json
def verify(folder: Path, accept: bool, as_json: bool) -> None:
    """Check every file of a run folder against its hash, and the files against each other."""
    from excite.runs.verify import verify as verify_runs

    verification = verify_runs(folder, accept=accept)
    show(as_json, verification.to_json(), str(verification))
    if verification.problems:
        problems = f"{len(verification.problems)} of {verification.files} files"
        raise CorruptFileError(f"{problems} in {folder} have been changed or damaged.")


@click.group()
def data() -> None:
    """List, fetch and verify data sets."""


@data.command(name="list", epilog="Example: excite data list")
@options.as_json
def data_list(as_json: bool) -> None:
    """List the data sets, and which of them are on this machine."""
    from dataclasses import asdict

    from excite.data import listing

    statuses = listing()
    show(as_json, [asdict(status) for status in statuses], "\n".join(map(str, statuses)))


@data.command(epilog="Example: excite data fetch cifar10")
@click.argument("name")
def fetch(name: str) -> None:
    """Fetch the data set NAME into the data directory (EXCITE_DATA, or the user's cache)."""
    from excite.data import fetch as fetch_data

    click.echo(fetch_data(name))


@data.command(name="verify", epilog="Example: excite data verify cifar10")
@click.argument("name")
def data_verify(name: str) -> None:
    """Check the data set NAME against its known SHA-256 (CIFAR-100: the one recorded at download)."""
    from excite.data import verify as verify_data

    click.echo(f"{name}: {verify_data(name)}")
