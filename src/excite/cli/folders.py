"""Commands on a trained run folder (estimate, certify, attack, pseudo-label, export, verify) and on data sets."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excite.cli import options
from excite.cli.options import console, open_run, read_run, refuse_ignored, show
from excite.errors import CorruptFileError

if TYPE_CHECKING:
    from excite.evaluation import Evaluation
    from excite.execution import EngineName
    from excite.precision import Precision

PRECISIONS = ("float32", "tf32", "bf16")
FORMATS = ("hub", "robustbench", *options.TRACKERS)


@click.command(epilog="Example: excite estimate runs/mnist-sample --compare")
@options.run
@click.option("--compare", is_flag=True, help="Show every estimator side by side, with its 1/L and 2/L.")
@click.option("--train", "may_train", is_flag=True, help="Make missing estimates, with the trainings that they need.")
@options.device
@options.as_json
def estimate(folder: Path, compare: bool, may_train: bool, device: str | None, as_json: bool) -> None:
    """Show the L of a run. Reads stored estimates; --train makes missing ones."""
    from excite.report.estimates import estimates_table

    if may_train:
        opened = open_run(folder, device)
        opened.estimates() if compare else opened.estimate()
    else:
        refuse_ignored(["device"], "stored estimates are read; add --train to make missing ones")
    run = read_run(folder)
    estimate_of_run = run.needed_estimate()
    if compare:
        estimates = run.stored_estimates()
        values = {name: answer if isinstance(answer, str) else answer.to_json() for name, answer in estimates.items()}
        show(as_json, values, estimates_table(estimates, run))
    else:
        show(as_json, estimate_of_run.to_json(), str(estimate_of_run))


@click.command(epilog="Example: excite certify runs/mnist-sample --arm poe")
@options.run
@options.arm
@options.as_json
def certify(folder: Path, arm: str, as_json: bool) -> None:
    """Show whether a training was persistently excited.

    For every epoch, print whether the assumptions of the theorem hold, and the rate as a multiple of 1/L.
    """
    from excite.report.estimates import excitation_facts, excitation_table
    from excite.runs.arms import OWN, arm_named

    run, chosen = read_run(folder), arm_named(arm)
    trace, stored = run.needed_trace(chosen.name), run.needed_estimate(chosen.estimator or OWN)
    show(as_json, excitation_facts(trace, stored), excitation_table(trace, stored))


@click.command(epilog="Example: excite attack runs/mnist-sample --arm poe --with pgd --eps 0.1 --examples 200")
@click.argument("targets", metavar="[RUN_OR_WEIGHTS]…", type=click.Path(path_type=Path, exists=True), nargs=-1)
@options.arm
@click.option("--with", "names", multiple=True, help="pgd, autoattack, square, …; by default the experiment's attacks.")
@click.option("--eps", type=options.NUMBERS, help="Radius, such as 8/255; 1/255,2/255,4/255 give a curve.")
@click.option("--step", type=options.NUMBER, help="Step size of PGD; by default 2.5 ε / steps.")
@click.option("--steps", type=options.POSITIVE, help="Steps of PGD.")
@click.option("--restarts", type=options.POSITIVE, help="Restarts; with several, PGD starts at random points.")
@click.option("--norm", type=click.Choice(["linf", "l2", "l1"]), help="Norm of the perturbation.")
@click.option("--examples", type=options.POSITIVE, help="Attack a random subset of the test images.")
@click.option("--model", help="Your own model, package.module:factory, or the name of a model of excite.")
@click.option("--weights", type=click.Path(path_type=Path), help="Weights of --model: .safetensors, or .pt of tensors.")
@click.option("--data", "data_name", default="cifar10", show_default=True, help="Test images for --model.")
@click.option("--batch-size", type=options.POSITIVE, default=128, show_default=True, help="Images attacked together.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="float32", help="Of the search; float32 decides.")
@click.option("--workers", type=options.POSITIVE, help="Processes that share the images, each with one thread or GPU.")
@options.engine
@options.address
@options.work
def attack(
    targets: tuple[Path, ...],
    arm: str,
    names: tuple[str, ...],
    examples: int | None,
    model: str | None,
    weights: Path | None,
    data_name: str,
    batch_size: int,
    precision: "Precision",
    workers: int | None,
    engine: "EngineName",
    address: str | None,
    device: str | None,
    as_json: bool,
    **attack_options: Any,
) -> None:
    """Attack a trained arm, or your own model with --model.

    Without --with, show the accuracy under the experiment's attacks, which run first if they have not. The result of
    attacks named with --with is saved to another file in the arm's folder, or next to the weights. Run the command
    again to resume an interrupted attack.

    Two models are attacked on the same images and compared. Each is a run folder, the folder of an arm in it, such as
    runs/mnist-sample/poe, or a weights file of --model.
    """
    from excite.attacks.given import named_attacks
    from excite.evaluation import Evaluation, Shards
    from excite.runs.folder import arm_at
    from excite.runs.stages.attack import attack_target, own_model, target_of

    attacking = [*attack_options, "examples", "model"]
    for ignored, parameters, cure in (
        (engine != "ray", ["address"], "it names a Ray cluster; add --engine ray"),
        (model is None, ["weights", "data_name"], "a run folder has its own; add --model for your own model"),
        (not names, attacking, "the run's own attacks have theirs; add --with, for instance --with pgd"),
        (not names, ["batch_size", "precision"], "the experiment's key counts; add --with, for instance --with pgd"),
        (model, ["arm"], "--model has no arms; leave it out"),
    ):
        if ignored:
            refuse_ignored(parameters, cure)
    if model and targets and weights:
        raise click.UsageError(f"{targets[0]} and --weights {weights} both name weights; name one of them.")
    if model and not (targets := targets or ((weights,) if weights else ())):
        raise click.UsageError("--model needs weights: add --weights FILE.")
    if not targets or (not model and any(target.is_file() for target in targets)):
        raise click.UsageError("Name a run folder, or --model, --weights and --with for your own model.")
    if len(targets) > 2 or len(set(targets)) < len(targets):
        raise click.UsageError("Name one model, or two different ones to compare.")
    shards = Shards(workers, engine, address)

    def attacked(target: Path) -> tuple[Evaluation, Path | None]:
        """The result of one model and, if it belongs to attacks named with --with, its file."""
        if model:
            chosen = own_model(model, target, data_name=data_name, device=device)
        else:
            folder, name = arm_at(target, arm)
            if folder != target:
                refuse_ignored(["arm"], f"{target} is the folder of an arm; leave it out")
            run = open_run(folder, device)
            if not names:
                return run.attack(name, shards), None
            chosen = target_of(run.parts, run.files.needed_model(name))
        images: dict[str, Any] = {"examples": examples, "batch_size": batch_size}
        attacks = named_attacks(names, attack_options)
        return attack_target(chosen, attacks, console=console(), precision=precision, shards=shards, **images)

    results = [attacked(target) for target in targets]
    if len(results) == 2:
        _show_pair(as_json, {str(target): result for target, (result, _) in zip(targets, results, strict=True)})
        return
    ((evaluation, file),) = results
    saved = "" if file is None else f"\nSaved: {file}"
    show(as_json, evaluation.to_json() | ({} if file is None else {"file": str(file)}), f"{evaluation}{saved}")


def _show_pair(as_json: bool, models: dict[str, "Evaluation"]) -> None:
    """Two evaluations of the same images, and the paired difference under each attack."""
    from excite.evaluation import compare

    first, second = models.values()
    pairs = [compare(first, second, on) for on in first.accuracies]
    differences = [{key: getattr(pair, key) for key in ("on", "difference", "interval", "p_value")} for pair in pairs]
    value = {"evaluations": {name: each.to_json() for name, each in models.items()}, "differences": differences}
    show(as_json, value, "\n\n".join([*(f"{name}\n{each}" for name, each in models.items()), *map(str, pairs)]))


@click.command(
    name="pseudo-label",
    epilog="Example: excite pseudo-label runs/teacher --data cifar10-10k+40k --out pseudo.npz --threshold 0.9",
)
@options.run
@options.arm
@click.option("--data", "source", required=True, help="A data set with hidden labels, or an .npz file of images.")
@click.option("--out", type=options.Output(dir_okay=False), required=True, help="The .npz file to write.")
@click.option("--threshold", type=options.SHARE, default=0.0, show_default=True, help="Minimum confidence of a label.")
@click.option("--balance", is_flag=True, help="Keep the same number of labels per class: the most confident.")
@options.work
def pseudo_label(
    folder: Path, arm: str, source: str, out: Path, threshold: float, balance: bool, device: str | None, as_json: bool
) -> None:
    """Label images with a trained arm, for self-training.

    Writes a file that data.unlabelled can name.
    """
    from excite.runs.arms import arm_named
    from excite.runs.stages.teach import label_with_run

    name = arm_named(arm).name
    labelling = label_with_run(open_run(folder, device), name, source, out, threshold=threshold, balance=balance)
    show(as_json, labelling.to_json() | {"file": str(out)}, f"{labelling}\nPseudo-labels: {out}")


@click.command(epilog="Example: excite export runs/mnist-sample --arm poe --to robustbench")
@options.run
@click.option("--to", "target", type=click.Choice(FORMATS), required=True, help="Target format.")
@options.arm
@click.option("--out", type=options.Output(file_okay=False), help="Folder; by default in exports or RUN/tensorboard.")
@options.as_json
def export(folder: Path, target: str, arm: str, out: Path | None, as_json: bool) -> None:
    """Export a trained arm, or curves to a tracker.

    An arm becomes a folder for the Hugging Face Hub or RobustBench's leaderboard. A tracker gets the curves of all
    arms.
    """
    if target in options.TRACKERS:
        refuse_ignored(["arm"], "every arm is logged; leave it out")
        if target != "tensorboard":
            refuse_ignored(["out"], f"{target} chooses where to write; see docs/loggers.md")
        from excite.integrations.loggers import write_run

        hint = write_run(read_run(folder), target, out)
        show(as_json, {"show": hint}, hint)
        return
    from excite.integrations import hub, robustbench
    from excite.runs.arms import arm_named

    export_to = hub.export if target == "hub" else robustbench.export
    run = read_run(folder)
    written = export_to(run, arm_named(arm).name, out)
    hint = f"excite.integrations.hub.{hub.loading(run.experiment, written)}"
    if target == "hub":
        hint += f"\nhf upload YOUR_NAME/{written.name} {written}"
    show(as_json, {"folder": str(written)}, f"{written}\n{hint}")


@click.command(epilog="Example: excite verify runs/mnist-sample")
@options.run
@options.as_json
def verify(folder: Path, as_json: bool) -> None:
    """Check that the files of a run have not changed.

    Every file is compared with its hash, and the files with each other.
    """
    from excite.runs.verify import verify as verify_runs

    verification = verify_runs(folder)
    show(as_json, asdict(verification), str(verification))
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
    from excite.data import listing

    statuses = listing()
    show(as_json, [asdict(status) for status in statuses], "\n".join(map(str, statuses)))


@data.command(epilog="Example: excite data fetch cifar10")
@click.argument("name")
def fetch(name: str) -> None:
    """Fetch the data set NAME.

    It is stored in the data directory: EXCITE_DATA, or the user's cache.
    """
    from excite.data import fetch as fetch_data

    click.echo(fetch_data(name))


@data.command(name="verify", epilog="Example: excite data verify cifar10")
@click.argument("name")
def data_verify(name: str) -> None:
    """Check the data set NAME against its known SHA-256.

    For CIFAR-100 this is the hash that was recorded at download.
    """
    from excite.data import verify as verify_data

    click.echo(f"{name}: {verify_data(name)}")
