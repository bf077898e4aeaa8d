"""Write a run folder for TensorBoard: epochs, L, acuteness, certificates, accuracies and figures."""

from pathlib import Path

from excite.integrations import estimate_values, extra, trace_values
from excite.lipschitz import LipschitzEstimate
from excite.report.figures import plot
from excite.runs.folder import ArmFolder, RunFolder
from excite.trace import Trace

with extra("tensorboard"):
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["add_estimate", "add_trace", "write_run"]


def write_run(run: RunFolder, destination: Path | None = None) -> Path:
    """Write event files, one per arm and one for the run; `tensorboard --logdir` shows them side by side.

    Args:
        run: the run folder; unfinished stages are left out.
        destination: the folder to write to; by default tensorboard/ in the run folder.

    Returns:
        The folder written to.
    """
    folder = destination or run.path / "tensorboard"
    with SummaryWriter(str(folder / "run")) as writer:
        if run.estimate is not None:
            add_estimate(writer, run.estimate)
            writer.add_figure("excite/figure-1", plot("figure-1", [run]), 0)
    for arm in run.arms:
        with SummaryWriter(str(folder / arm.name)) as writer:
            _write_arm(writer, arm)
    return folder


def _write_arm(writer: SummaryWriter, arm: ArmFolder) -> None:
    for epoch in arm.epochs:
        values = {"loss": epoch.loss, "rate": epoch.rate, "seconds": epoch.seconds, **epoch.extra}
        for name, value in values.items():
            writer.add_scalar(f"epoch/{name}", value, epoch.epoch)
    trace = arm.trace()
    if trace is not None:
        add_trace(writer, trace)
    if arm.evaluation is not None:
        writer.add_scalar("accuracy/clean", arm.evaluation.clean.value, len(arm.epochs))
        for name, accuracy in arm.evaluation.robust.items():
            writer.add_scalar(f"accuracy/{name}", accuracy.value, len(arm.epochs))
        writer.add_text("evaluation", f"```\n{arm.evaluation}\n```", len(arm.epochs))


def add_estimate(writer: SummaryWriter, estimate: LipschitzEstimate, step: int = 0) -> None:
    """Add L, its interval, its rates and its plot to your writer."""
    for name, value in estimate_values(estimate).items():
        writer.add_scalar(name, value, step)
    figure = estimate.plot().get_figure(root=True)
    if figure is not None:
        writer.add_figure("excite/edge", figure, step)
    writer.add_text("excite/L", str(estimate), step)


def add_trace(writer: SummaryWriter, trace: Trace) -> None:
    """Add a trace to your writer: every local slope, and the final acuteness and share of certified steps."""
    for slope, step in zip(trace.slopes, trace.slope_steps, strict=True):
        writer.add_scalar("excite/local_slope", float(slope), int(step))
    last = int(trace.steps[-1]) if len(trace) else 0
    for name, value in trace_values(trace).items():
        if name != "excite/local_slope":
            writer.add_scalar(name, value, last)
