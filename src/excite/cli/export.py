"""Hand a run to other people's tools: `excite export`."""

from pathlib import Path

import click

from excite.cli.shared import Output, arm_option, json_option, read_run, refuse_ignored, run_argument, show


@click.command(epilog="Example: excite export runs/mnist-sample --arm poe --to robustbench")
@run_argument
@click.option("--to", "target", type=click.Choice(["robustbench", "tensorboard"]), required=True, help="For whom.")
@arm_option
@click.option("--out", type=Output(file_okay=False), help="By default exports/<experiment>-<arm>, or RUN/tensorboard.")
@json_option
def export(folder: Path, target: str, arm: str, out: Path | None, as_json: bool) -> None:
    """Write a trained arm as a model folder with a row for RobustBench's leaderboard, or all arms for TensorBoard."""
    if target == "tensorboard":
        refuse_ignored(["arm"], "TensorBoard shows every arm; leave it out")
    run = read_run(folder)
    if target == "tensorboard":
        from excite.integrations import tensorboard

        written = tensorboard.write_run(run, out)
        hint = f"tensorboard --logdir {written}"
    else:
        from excite.integrations import robustbench
        from excite.runs.arms import arm_named

        written = robustbench.export(run, arm_named(arm).name, out)
        hint = f'excite.integrations.robustbench.load_model("{written}")'
    show(as_json, {"folder": str(written)}, f"{written}\n{hint}")
