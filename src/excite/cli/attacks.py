"""Commands that put a trained arm to use: attack, pseudo-label."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excite.cli.shared import (
    NUMBER,
    NUMBERS,
    SHARE,
    Output,
    arm_option,
    console,
    device_option,
    json_option,
    open_run,
    refuse_ignored,
    run_argument,
    shard_options,
    show,
    verbosity_options,
)

if TYPE_CHECKING:
    from excite.execution import EngineName


@click.command(epilog="Example: excite attack runs/mnist-sample --arm poe --with pgd --eps 0.1 --examples 200")
@click.argument("target", metavar="[RUN_OR_WEIGHTS]", type=click.Path(path_type=Path, exists=True), required=False)
@arm_option
@click.option("--with", "names", multiple=True, help="pgd, autoattack, square …; by default the experiment's attacks.")
@click.option("--eps", type=NUMBERS, help="Radius of the ball, 8/255; several, 1/255,2/255,4/255, give a curve.")
@click.option("--step", type=NUMBER, help="Step length of PGD; by default 2.5 ε / steps.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps of PGD.")
@click.option("--restarts", type=click.IntRange(min=1), help="Restarts; with several, PGD starts at random points.")
@click.option("--norm", type=click.Choice(["linf", "l2"]), help="The norm of the ball.")
@click.option("--examples", type=click.IntRange(min=1), help="Attack a random subset of the test images.")
@click.option("--subset-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Which subset.")
@click.option("--model", help="A stranger's model, package.module:factory, or the name of one of ours.")
@click.option("--weights", type=click.Path(path_type=Path), help="Its weights: .safetensors, or .pt with tensors only.")
@click.option("--data", "data_name", default="cifar10", show_default=True, help="Data for a stranger's model.")
@shard_options
@device_option
@verbosity_options
@json_option
def attack(
    target: Path | None,
    arm: str,
    names: tuple[str, ...],
    examples: int | None,
    subset_seed: int,
    model: str | None,
    weights: Path | None,
    data_name: str,
    workers: int | None,
    engine: "EngineName",
    address: str | None,
    device: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Attack a trained arm of a run folder, or a stranger's weights with --model.

    Without --with the run's own attacks are made, or their verdict is read. Attacks named with --with go into a file of
    their own beside it; one that was stopped goes on from there.
    """
    from excite.attacks.given import named_attacks
    from excite.evaluation import Shards
    from excite.runs.arms import arm_named
    from excite.runs.attacking import arm_of_run, attack_target, stranger

    if engine != "ray":
        refuse_ignored(["address"], "it names a Ray cluster; add --engine ray")
    shards = Shards(workers, engine, address)
    if examples is None:
        refuse_ignored(["subset_seed"], "all test images are attacked; add --examples N")
    if model is None:
        refuse_ignored(["weights", "data_name"], "a run folder has its own; add --model for a model of yours")
    if not names:
        attacking = [*options, "examples", "subset_seed", "model"]
        refuse_ignored(attacking, "the run's own attacks have theirs; add --with, for instance --with pgd")
    if model:
        refuse_ignored(["arm"], "a model of yours has no arms; leave it out")
        if target and weights:
            raise click.UsageError(f"Of {target} and --weights {weights} one would be ignored: name one file.")
        if not (weights := weights or target):
            raise click.UsageError("--model also needs its weights: add --weights FILE.")
        chosen = stranger(model, weights, data_name=data_name, device=device, folder=weights.parent)
    elif target is None or target.is_file():
        raise click.UsageError("Name a run folder, or --model, --weights and --with for a model of yours.")
    elif names:
        chosen = arm_of_run(open_run(target, device), arm_named(arm).name)
    else:
        run, arm = open_run(target, device), arm_named(arm).name
        if run.files.arm(arm).evaluation_file.exists():
            refuse_ignored(["workers", "engine", "address"], "the verdict is there and is read; leave it out")
        evaluation = run.attack(arm, shards)
        show(as_json, evaluation.to_json(), str(evaluation))
        return
    evaluation = attack_target(
        chosen,
        named_attacks(names, options),
        console=console(),
        examples=examples,
        subset_seed=subset_seed,
        shards=shards,
    )
    show(as_json, evaluation.to_json(), str(evaluation))


@click.command(
    name="pseudo-label",
    epilog="Example: excite pseudo-label runs/teacher --data cifar10-10k+40k --out pseudo.npz --threshold 0.9",
)
@run_argument
@arm_option
@click.option("--data", "source", required=True, help="A data set with hidden labels, or an .npz file of images.")
@click.option("--out", type=Output(dir_okay=False), required=True, help="The .npz file to write.")
@click.option("--threshold", type=SHARE, default=0.0, show_default=True, help="The least confidence to keep.")
@click.option("--balance", is_flag=True, help="Keep equally many of each class, the most confident ones.")
@device_option
@verbosity_options
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
    from excite.runs.arms import arm_named
    from excite.runs.stages.pseudo_label import label_with_run

    named = arm_named(arm).name
    labelling = label_with_run(open_run(folder, device), named, source, out, threshold=threshold, balance=balance)
    show(as_json, labelling.to_json() | {"file": str(out)}, f"{labelling}\nPseudo-labels: {out}")
