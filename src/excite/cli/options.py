"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Any

import click

from excite.errors import InputError
from excite.quantities import number


class Number(click.ParamType[float]):
    """A number, or a fraction such as 8/255."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return number(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)


NUMBER = Number()

experiment_argument = click.argument("experiment", default="mnist-sample")
run_folder = click.Path(path_type=Path, exists=True, file_okay=False)
run_argument = click.argument("folder", metavar="RUN", type=run_folder)
runs_argument = click.argument("folders", metavar="RUNS…", nargs=-1, required=True, type=run_folder)
out_option = click.option("--out", type=click.Path(path_type=Path), help="Run folder; by default runs/<experiment>.")
set_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key of the experiment."
)
device_option = click.option("--device", help="cpu, cuda, mps; by default an accelerator if there is one.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def _arm_names(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
    from excite.runs.arms import arm_names

    return arm_names(value) if value else ()


def _arm_name(_context: click.Context, _option: click.Parameter, value: str) -> str:
    from excite.runs.arms import arm_named

    return arm_named(value).name


arm_option = click.option(
    "--arm", callback=_arm_name, default="baseline", show_default=True, help="baseline, poe, largest or grid:K."
)
arms_option = click.option(
    "--arms",
    callback=_arm_names,
    metavar="ARM,…",
    help="Of baseline, poe (1/L), largest (2/L) and grid:K (a grid search over K rates); by default the experiment's.",
)
seeds_option = click.option(
    "--seeds", type=click.IntRange(min=1), help="Repeat everything for the seeds 0, 1, … in a folder each."
)
