"""An exported arm in the layout of the Hugging Face Hub, loaded by huggingface_hub itself and by `from_pretrained`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from excite import models
from excite.console import Console
from excite.errors import InputError
from excite.integrations.hub import export, from_pretrained, save_model
from excite.models import LeNet5
from excite.runs.assemble import assemble
from excite.runs.experiment import from_values
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run

SHAPE = (1, 28, 28)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("run")
    values: dict[str, Any] = {
        "name": "moment",
        "data": {"name": "mnist-sample", "train_examples": 160, "test_examples": 24},
        "model": {"name": "lenet5", "options": {"activation": "tanh"}},
        "training": {"epochs": 1, "batch_size": 32, "schedule": {"kind": "constant", "rate": 0.2}},
        "attacks": {"PGD": {"kind": "pgd", "eps": 0.1, "steps": 2}},
        "arms": ["baseline"],
    }
    Run(folder, from_values(values), console=Console(quiet=True)).all()
    return RunFolder(folder)


@pytest.fixture(scope="module")
def folder(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(run, "baseline", tmp_path_factory.mktemp("exports") / "model")


@pytest.fixture
def trained(run: RunFolder) -> nn.Module:
    return run.arm("baseline").load_into(assemble(run.experiment, device="cpu").new_model()).eval()


def test_the_card_is_one_of_the_hub(run: RunFolder, folder: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(folder / "README.md")
    evaluation = run.arm("baseline").evaluation
    assert evaluation is not None
    assert card.data.library_name == "excite"
    assert str(evaluation.robust["PGD"]) in card.text
    assert "Intended use" in card.text


def test_the_hubs_own_mixin_loads_the_folder(folder: Path, trained: nn.Module) -> None:
    hub = pytest.importorskip("huggingface_hub")

    class OnTheHub(LeNet5, hub.PyTorchModelHubMixin):  # type: ignore[misc, name-defined, unused-ignore]
        """It reads config.json for the arguments, and model.safetensors."""

        def __init__(self, *, num_classes: int, input_shape: Any, options: Any) -> None:
            super().__init__(num_classes=num_classes, input_shape=tuple(input_shape), **options)

    images = torch.rand(3, *SHAPE)
    assert torch.equal(OnTheHub.from_pretrained(folder).eval()(images), trained(images))


def test_from_pretrained_loads_the_folder(folder: Path, trained: nn.Module) -> None:
    images = torch.rand(3, *SHAPE)
    assert torch.equal(from_pretrained(folder)(images), trained(images))


def test_from_pretrained_downloads_what_is_no_folder(
    folder: Path, trained: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[Any] = []

    def snapshot_download(name: str, **options: Any) -> str:  # the network's part
        asked.append((name, options["revision"]))
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    images = torch.rand(3, *SHAPE)
    assert torch.equal(from_pretrained("someone/model", revision="v1")(images), trained(images))
    assert asked == [("someone/model", "v1")]


def test_what_is_neither_a_folder_nor_a_repository_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(InputError, match="repository"):
        from_pretrained("no such/name/at all")


def test_a_folder_cannot_choose_what_is_imported(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    normalized = models.normalized(net, ([0.1], [0.3]))
    save_model(tmp_path, normalized, "os:getcwd", options={}, num_classes=10, input_shape=SHAPE, card="# Mine")
    with pytest.raises(InputError, match="network="):
        from_pretrained(tmp_path)
    images = torch.rand(2, *SHAPE)
    other = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    assert torch.equal(from_pretrained(tmp_path, other)(images), normalized(images))


def test_on_the_command_line(run: RunFolder, tmp_path: Path, call: Callable[..., tuple[str, str]]) -> None:
    printed, _ = call("export", run.path, "--to", "hub", "--out", tmp_path / "model")
    assert f'from_pretrained("{tmp_path / "model"}")' in printed
    assert {file.name for file in (tmp_path / "model").iterdir() if file.name[0] != "."} == {
        *("README.md", "config.json", "model.safetensors")
    }
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model"] == "lenet5"
