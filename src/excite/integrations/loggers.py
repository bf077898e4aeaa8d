"""Log a run folder with Trackio, Weights & Biases, MLflow or TensorBoard: rates, losses, L, accuracies, figures."""

import contextlib
import importlib
import io
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from excite.errors import InputError
from excite.integrations import estimate_values, needs, trace_values
from excite.registry import lookup
from excite.report.figures import plot
from excite.runs.experiment import flattened
from excite.runs.folder import ArmFolder, RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TRACKERS", "require", "write_run"]

FIGURES = ("figure-1", "figure-3", "gains")  # those that the run lacks data for are left out


class Sheet(Protocol):
    """One run of a tracker. Steps never decrease."""

    def values(self, values: Mapping[str, float], step: int) -> None: ...
    def figure(self, name: str, figure: "Figure") -> None: ...
    def close(self) -> None: ...


def write_run(run: RunFolder, kind: str, destination: Path | None = None) -> str:
    """Log what the stages of a run have written so far; return the command that shows it.

    Each arm becomes a run of the tracker; one more has L and the figures. The step of `epoch/…` and `accuracy/…` is the
    epoch, that of `excite/…` the training step.

    Args:
        run: the run folder.
        kind: one of `TRACKERS`. Trackio, Weights & Biases and MLflow write where their own settings say.
        destination: for TensorBoard, the folder of the event files; by default tensorboard/ in the run folder.
    """
    tracker, show = lookup("tracker", TRACKERS, kind)
    destination = destination or run.path / kind

    def sheet(name: str) -> "contextlib.closing[Sheet]":
        return contextlib.closing(tracker(run, name, destination))

    with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the results
        with sheet("run") as whole:
            if (estimate := run.estimate) is not None:
                whole.values(estimate_values(estimate), 0)
                if figure := estimate.plot().get_figure(root=True):
                    whole.figure("excite/edge", figure)
            for name in FIGURES:
                with contextlib.suppress(InputError):
                    whole.figure(f"excite/{name}", plot(name, [run]))
        for arm in run.arms:
            with sheet(arm.name) as of_arm:
                for step, values in sorted(_steps(arm).items()):
                    of_arm.values(values, step)
    return show.format(project=run.experiment.name, folder=destination)


def require(kind: str) -> None:
    """Raise MissingExtraError, which says what to install, unless the tracker's package is there."""
    _imported("torch.utils.tensorboard" if kind == "tensorboard" else kind)


def _steps(arm: ArmFolder) -> dict[int, dict[str, float]]:
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    for epoch in arm.epochs:
        values = {"loss": epoch.loss, "rate": epoch.rate, "seconds": epoch.seconds, **epoch.extra}
        steps[epoch.epoch] |= {f"epoch/{name}": value for name, value in values.items()}
    if (trace := arm.trace()) is not None:
        last = int(trace.steps[-1]) if len(trace) else 0
        steps[last] |= trace_values(trace)
        for slope, step in zip(trace.slopes, trace.slope_steps, strict=True):
            steps[int(step)]["excite/local_slope"] = float(slope)
    if arm.evaluation is not None:
        accuracies = {"clean": arm.evaluation.clean, **arm.evaluation.robust}
        steps[len(arm.epochs)] |= {f"accuracy/{name}": accuracy.value for name, accuracy in accuracies.items()}
    return steps


class _Calls:
    """Trackio and Weights & Biases, which have the same functions."""

    def __init__(self, package: str, run: RunFolder, name: str, _destination: Path) -> None:
        folder = run.path.resolve().name
        options = {"name": f"{folder}-{name}", "group": folder, "config": _settings(run)}
        self.package = _imported(package)
        self.run = self.package.init(project=run.experiment.name, **options)
        self.close = self.run.finish

    def values(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def figure(self, name: str, figure: "Figure") -> None:
        from PIL import Image

        file = io.BytesIO()
        figure.savefig(file, format="png")
        self.run.log({name: self.package.Image(Image.open(file))}, step=0)


class _MLflow:
    def __init__(self, run: RunFolder, name: str, _destination: Path) -> None:
        self.client = _imported("mlflow").MlflowClient()
        found = self.client.get_experiment_by_name(run.experiment.name)
        number = found.experiment_id if found else self.client.create_experiment(run.experiment.name)
        self.id = self.client.create_run(number, run_name=f"{run.path.resolve().name}-{name}").info.run_id
        for key, value in _settings(run).items():
            self.client.log_param(self.id, _plain(key), value)

    def values(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.id, _plain(name), value, step=step)

    def figure(self, name: str, figure: "Figure") -> None:
        self.client.log_figure(self.id, figure, f"{_plain(name)}.png")

    def close(self) -> None:
        self.client.set_terminated(self.id)


class _TensorBoard:
    def __init__(self, _run: RunFolder, name: str, destination: Path) -> None:
        self.writer = _imported("torch.utils.tensorboard").SummaryWriter(str(destination / name))
        self.close = self.writer.close

    def values(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def figure(self, name: str, figure: "Figure") -> None:
        self.writer.add_figure(name, figure, 0)


def _settings(run: RunFolder) -> dict[str, str]:
    return {key: str(value) for key, value in flattened(run.experiment.to_json()).items() if value is not None}


def _plain(name: str) -> str:
    """A name that MLflow accepts."""
    return re.sub(r"[^\w./: -]", "-", name)


def _imported(module: str) -> Any:
    with needs(module.rpartition(".")[2]):
        return importlib.import_module(module)


TRACKERS: dict[str, tuple[Callable[[RunFolder, str, Path], Sheet], str]] = {  # by name, with the command that shows it
    "trackio": (partial(_Calls, "trackio"), 'trackio show --project "{project}"'),
    "wandb": (partial(_Calls, "wandb"), "wandb sync --include-offline wandb/offline-*  # if it was offline"),
    "mlflow": (_MLflow, "mlflow ui"),
    "tensorboard": (_TensorBoard, "tensorboard --logdir {folder}"),
}
