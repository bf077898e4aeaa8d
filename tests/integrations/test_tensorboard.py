"""Event files, read back with TensorBoard itself, hold what the run folder holds."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # TensorBoard's own
pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

from excite.console import Console  # noqa: E402
from excite.integrations import tensorboard  # noqa: E402
from excite.runs.experiment import from_values  # noqa: E402
from excite.runs.folder import RunFolder  # noqa: E402
from excite.runs.procedure import Run  # noqa: E402


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
            "attacks": {"PGD": {"kind": "pgd", "eps": 0.1, "step": 0.05, "steps": 2}},
            "arms": ["baseline", "poe"],
        }
    )
    Run(folder, experiment, console=Console()).all()
    return RunFolder(folder)


def events(folder: Path) -> Any:
    found = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    found.Reload()
    return found


def test_what_is_written_is_what_the_run_holds(run: RunFolder, tmp_path: Path) -> None:
    folder = tensorboard.write_run(run, tmp_path)
    assert run.estimate is not None
    whole = events(folder / "run")
    assert whole.Scalars("excite/L")[0].value == pytest.approx(run.estimate.constant)
    assert {"excite/edge", "excite/figure-1"} <= {*whole.Tags()["images"]}
    for arm in run.arms:
        own = events(folder / arm.name)
        losses = [(event.step, event.value) for event in own.Scalars("epoch/loss")]
        assert losses == [(epoch.epoch, pytest.approx(epoch.loss)) for epoch in arm.epochs]
        assert own.Scalars("epoch/rate")[0].value == pytest.approx(arm.rate)
        assert {"excite/acuteness", "excite/certified", "excite/local_slope"} <= {*own.Tags()["scalars"]}
        assert arm.evaluation is not None
        assert own.Scalars("accuracy/PGD")[0].value == pytest.approx(arm.evaluation.robust["PGD"].value)


def test_beside_the_run_by_default(run: RunFolder) -> None:
    assert tensorboard.write_run(run) == run.path / "tensorboard"


def test_a_run_without_l_is_written_too(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    RunFolder(tmp_path / "run").estimate_file().unlink()
    folder = tensorboard.write_run(RunFolder(tmp_path / "run"), tmp_path / "events")
    assert events(folder / "run").Tags()["images"] == []
    assert "accuracy/clean" in events(folder / "baseline").Tags()["scalars"]
