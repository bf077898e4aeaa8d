"""An exported arm in the layout of the Hugging Face Hub, loaded by huggingface_hub itself and by `from_pretrained`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from excite import data, models
from excite.console import Console
from excite.errors import CorruptFileError, InputError
from excite.evaluation import evaluate
from excite.files import write_json
from excite.integrations.hub import export, from_pretrained, model_card, save_model
from excite.lipschitz import LipschitzEstimate
from excite.models import LeNet5
from excite.runs.arms import OWN
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
        "attacks": {"PGD": {"kind": "pgd", "eps": 0.1, "steps": 2, "random_start": True}},
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


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    model = models.create("lenet5", input_shape=(1, 28, 28), normalize=([0.13], [0.31]), activation="tanh").eval()
    card = model_card("LeNet-5", "A test.", None, dataset="mnist", load="from_pretrained()")
    shape = (1, 28, 28)
    save_model(tmp_path, model, "lenet5", options={"activation": "tanh"}, num_classes=10, input_shape=shape, card=card)
    return tmp_path, model


def test_a_saved_model_loads_back_bit_for_bit(saved: tuple[Path, nn.Module]) -> None:
    folder, model = saved
    again = from_pretrained(folder)
    images = torch.rand(5, 1, 28, 28)
    assert not again.training
    assert torch.equal(again(images), model(images))
    assert "Intended use" in (folder / "README.md").read_text(encoding="utf-8")


def test_changed_weights_are_refused(saved: tuple[Path, nn.Module]) -> None:
    weights = saved[0] / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CorruptFileError, match="SHA-256"):
        from_pretrained(saved[0])


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="excite export"):
        from_pretrained(tmp_path)


def test_an_exported_arm_attacks_to_the_same_verdicts(run: RunFolder, tmp_path: Path) -> None:
    folder = export(run, "baseline", tmp_path / "model")
    parts = assemble(run.experiment, device="cpu")
    again = evaluate(from_pretrained(folder), parts.test.floats(), parts.test.labels, parts.attacks, seed=0)
    before = run.arm("baseline").evaluation
    assert before is not None
    for name in ("clean", "PGD"):
        assert np.array_equal(again.outcomes(name), before.outcomes(name))
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert str(before.robust["PGD"]) in card
    assert "Intended use" in card


def test_the_path_of_own_images_stays_private(tmp_path: Path) -> None:
    file, digits = tmp_path / "private" / "digits.npz", data.load("mnist-sample")
    file.parent.mkdir()
    parts = {"train": digits.train.subset(160), "test": digits.test.subset(24)}
    arrays: dict[str, Any] = {f"x_{name}": part.images.numpy() for name, part in parts.items()}
    arrays |= {f"y_{name}": part.labels.numpy() for name, part in parts.items()}
    np.savez(file, **arrays)
    experiment = from_values(
        {
            "name": "own",
            "data": {"name": str(file)},
            "model": {"name": "lenet5"},
            "training": {"epochs": 1, "batch_size": 32, "schedule": {"kind": "constant", "rate": 0.2}},
            "attacks": {"PGD": {"kind": "pgd", "eps": "8/255", "steps": 2}},
            "arms": ["baseline"],
        }
    )
    Run(tmp_path / "run", experiment, console=Console(quiet=True)).all()
    folder = export(RunFolder(tmp_path / "run"), "baseline", tmp_path / "model")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "trained on digits" in card
    assert "private" not in card


def test_the_card_has_the_l_of_its_arm(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    (tmp_path / "run/baseline").rename(tmp_path / "run/poe@stated")
    copy = RunFolder(tmp_path / "run")
    for name, constant in ((OWN, 3.0), ("stated", 7.0)):
        estimate = LipschitzEstimate(constant, (constant, constant), name or "edge", True, "a test")
        write_json(copy.estimate_file(name), {"estimate": estimate.to_json(), "seconds": 0.0})
    card = (export(copy, "poe@stated", tmp_path / "model") / "README.md").read_text(encoding="utf-8")
    assert "L = 7, stated" in card
    assert "L = 3" not in card


def test_an_arm_that_was_not_trained_is_refused(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--arm poe"):
        export(run, "poe", tmp_path)
