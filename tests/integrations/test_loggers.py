"""What TensorBoard, MLflow, Trackio and Weights & Biases hold, read back with themselves, is what the run holds."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from excite.cli.options import TRACKERS as ON_THE_COMMAND_LINE
from excite.console import Console
from excite.integrations import MissingExtraError
from excite.integrations.loggers import TRACKERS, require, write_run
from excite.runs.experiment import from_values
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run

pytestmark = pytest.mark.filterwarnings("ignore")  # the packages' own
ATTACK = "PGD ε=0.1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("run")
    experiment = from_values(
        {
            "name": "moment",
            "data": {"name": "mnist-sample", "train_examples": 160, "test_examples": 24},
            "model": {"name": "lenet5"},
            "training": {"epochs": 4, "batch_size": 32, "schedule": {"kind": "constant", "rate": 0.1}},
            "lipschitz": {"method": "local"},
            "allow_unidentified": True,
            "attacks": {ATTACK: {"kind": "pgd", "eps": 0.1, "step": 0.05, "steps": 2}},
            "arms": ["baseline", "poe"],
        }
    )
    Run(folder, experiment, console=Console()).all()
    return RunFolder(folder)


def losses(run: RunFolder, arm: str) -> list[tuple[int, Any]]:
    return [(epoch.epoch, pytest.approx(epoch.loss)) for epoch in run.arm(arm).epochs]


def accuracy(run: RunFolder, arm: str) -> Any:
    evaluation = run.arm(arm).evaluation
    assert evaluation is not None
    return pytest.approx(evaluation.robust[ATTACK].value)


def constant(run: RunFolder) -> Any:
    assert run.estimate is not None
    return pytest.approx(run.estimate.constant)


def events(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    found.Reload()
    return found


def test_tensorboard(run: RunFolder, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    assert write_run(run, "tensorboard", tmp_path) == f"tensorboard --logdir {tmp_path}"
    whole = events(tmp_path / "run")
    assert whole.Scalars("excite/L")[0].value == constant(run)
    assert {"excite/edge", "excite/figure-1"} <= {*whole.Tags()["images"]}
    for arm in run.arms:
        own = events(tmp_path / arm.name)
        assert [(event.step, event.value) for event in own.Scalars("epoch/loss")] == losses(run, arm.name)
        assert own.Scalars("epoch/rate")[0].value == pytest.approx(arm.rate)
        assert {"excite/acuteness", "excite/certified", "excite/local_slope"} <= {*own.Tags()["scalars"]}
        assert own.Scalars(f"accuracy/{ATTACK}")[0].value == accuracy(run, arm.name)


def test_tensorboard_beside_the_run_by_default(run: RunFolder) -> None:
    pytest.importorskip("tensorboard")
    assert str(run.path / "tensorboard") in write_run(run, "tensorboard")
    assert (run.path / "tensorboard" / "baseline").is_dir()


def test_a_run_without_l_is_logged_too(run: RunFolder, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    shutil.copytree(run.path, tmp_path / "run")
    RunFolder(tmp_path / "run").estimate_file().unlink()
    write_run(RunFolder(tmp_path / "run"), "tensorboard", tmp_path / "events")
    assert "excite/edge" not in events(tmp_path / "events" / "run").Tags()["images"]
    assert "accuracy/clean" in events(tmp_path / "events" / "baseline").Tags()["scalars"]


def test_mlflow(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    write_run(run, "mlflow")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("moment")
    runs = {made.info.run_name: made for made in client.search_runs([experiment.experiment_id])}
    name = run.path.name
    assert runs.keys() == {f"{name}-{arm}" for arm in ("run", "baseline", "poe")}
    whole, poe = (runs[f"{name}-{arm}"] for arm in ("run", "poe"))
    history = client.get_metric_history(poe.info.run_id, "epoch/loss")
    assert [(metric.step, metric.value) for metric in history] == losses(run, "poe")
    assert poe.data.metrics["accuracy/PGD ε-0.1"] == accuracy(run, "poe")  # MLflow allows no =
    assert whole.data.metrics["excite/L"] == constant(run)
    assert "excite/edge.png" in {file.path for file in client.list_artifacts(whole.info.run_id, "excite")}
    assert poe.data.params["training.epochs"] == "4"
    assert {made.info.status for made in runs.values()} == {"FINISHED"}


def test_trackio(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read when it is imported, here for the first time
    trackio = pytest.importorskip("trackio", reason="trackio is not installed")
    assert write_run(run, "trackio") == 'trackio show --project "moment"'
    arm, whole = (
        trackio.SQLiteStorage.get_logs("moment", f"{run.path.resolve().name}-{name}") for name in ("poe", "run")
    )
    logged = [(row["step"], row["epoch/loss"]) for row in arm if "epoch/loss" in row]
    assert logged == losses(run, "poe")
    assert [row[f"accuracy/{ATTACK}"] for row in arm if f"accuracy/{ATTACK}" in row] == [accuracy(run, "poe")]
    values = {name: value for row in whole for name, value in row.items()}
    assert values["excite/L"] == constant(run)
    assert values["excite/edge"]["_type"] == "trackio.image"


def test_weights_and_biases(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    pytest.importorskip("wandb", reason="wandb is not installed")
    write_run(run, "wandb")

    def holding(name: bytes) -> int:
        return sum(name in file.read_bytes() for file in tmp_path.rglob("*.wandb"))

    for key, files in {b"epoch/loss": 2, b"accuracy/clean": 2, b"excite/L": 1}.items():
        latest = time.monotonic() + 20
        while holding(key) < files and time.monotonic() < latest:  # its own process writes the files
            time.sleep(0.1)
        assert holding(key) == files
    assert [*tmp_path.rglob("media/images/excite/edge*.png")]


@pytest.mark.parametrize("kind", TRACKERS)
def test_a_missing_package_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard" if kind == "tensorboard" else kind, None)
    with pytest.raises(MissingExtraError, match=f'pip install "{kind}"'):
        require(kind)


def test_on_the_command_line(run: RunFolder, tmp_path: Path, call: Callable[..., tuple[str, str]]) -> None:
    assert set(ON_THE_COMMAND_LINE) == TRACKERS.keys()
    pytest.importorskip("tensorboard")
    _, said = call("run", run.path, "--log", "tensorboard")
    assert f"tensorboard --logdir {run.path / 'tensorboard'}" in said
    printed, _ = call("export", run.path, "--to", "tensorboard", "--out", tmp_path / "events")
    assert f"tensorboard --logdir {tmp_path / 'events'}" in printed
    assert (tmp_path / "events" / "poe").is_dir()
