"""benchmark() returns what RobustBench returns, rows have the leaderboard's keys, and exported models load back."""

import dataclasses
import inspect
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import excite
from excite import data, models
from excite.attacks import ATTACKS, AttackWarning, as_attack
from excite.console import Console
from excite.data import Dataset
from excite.errors import CorruptFileError, InputError
from excite.evaluation import evaluate
from excite.files import write_json
from excite.integrations.hub import from_pretrained, model_card, save_model
from excite.integrations.robustbench import export
from excite.lipschitz import LipschitzEstimate
from excite.runs.arms import OWN
from excite.runs.assemble import assemble
from excite.runs.experiment import from_values
from excite.runs.folder import EVALUATION, EXPERIMENT, RunFolder
from excite.runs.procedure import Run

KEYS = {
    "link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture", "eps",
    "clean_acc", "reported", "autoattack_acc", "footnote", "unreliable",
}  # fmt: skip


class Halves(nn.Module):
    """Class 1 where the mean of an image is above ½: an image is robust if the ball does not reach across."""

    def forward(self, images: Tensor) -> Tensor:
        above = 40 * (images.flatten(1).mean(1) - 0.5)
        return torch.stack([-above, above, above - 50, above - 50], 1)


@pytest.fixture(scope="module")
def halves() -> Dataset:
    """Grey images of 0.1, 0.45, 0.55 and 0.9, and one with a wrong label."""
    values = torch.tensor([26, 115, 140, 230, 26], dtype=torch.uint8)
    images = values.view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    labels = torch.tensor([0, 0, 1, 1, 1])
    return data.from_tensors(images, labels, images, labels, name="halves", num_classes=4)


def quiet_benchmark(*arguments: object, **options: object) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttackWarning)
        return excite.benchmark(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("eps", "robust"), [(0.0, 4 / 5), pytest.param(0.1, 2 / 5, marks=pytest.mark.slow), (0.5, 0.0)]
)
def test_a_known_answer(halves: Dataset, eps: float, robust: float) -> None:
    clean, under_attack = quiet_benchmark(Halves(), 5, halves, "Linf", eps=eps)
    assert [clean, under_attack] == pytest.approx([4 / 5, robust])


def test_the_first_examples_as_robustbench_takes_them(halves: Dataset) -> None:
    assert quiet_benchmark(Halves(), 4, halves, eps=0.0) == (1.0, 1.0)


def test_the_arguments_of_robustbench_in_its_order() -> None:
    """As in its newest release."""
    assert list(inspect.signature(excite.benchmark).parameters) == [
        "model", "n_examples", "dataset", "threat_model", "to_disk", "model_name", "data_dir", "corruptions_data_dir",
        "device", "batch_size", "eps", "log_path", "preprocessing", "aa_state_path",
    ]  # fmt: skip


def test_the_log_and_the_state(halves: Dataset, tmp_path: Path) -> None:
    log, state = tmp_path / "log.txt", tmp_path / "state.json"
    for _ in range(2):  # the second time it only reads the state
        assert quiet_benchmark(Halves(), 4, halves, eps=0.5, log_path=log, aa_state_path=state) == (1.0, 0.0)
        assert "AutoAttack 0.00%" in log.read_text(encoding="utf-8")
        assert state.exists()


def test_accepts_the_enums_of_robustbench(halves: Dataset) -> None:
    class ThreatModel(Enum):
        L2 = "L2"

    assert quiet_benchmark(Halves(), 5, halves, ThreatModel.L2, eps=0.0)[0] == pytest.approx(4 / 5)


def test_the_record_on_disk(halves: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quiet_benchmark(Halves().train(), 4, halves, "Linf", True, "Halves2026", eps="128/255")
    record = json.loads((tmp_path / "model_info/halves/Linf/Halves2026.json").read_text())
    assert record.keys() == KEYS
    assert (record["eps"], record["clean_acc"], record["autoattack_acc"]) == ("128/255", "100.00", "0.00")
    assert "4" in record["footnote"]
    assert record["number_forward_passes"] == 1


def test_train_mode_is_reported_but_not_distrusted() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 2))
    found = evaluate(model, torch.rand(8, 1, 8, 8), torch.zeros(8, dtype=torch.long), "pgd", eps=0.0)
    assert "train mode" in str(found)
    flags = {flag.name for flag in found.flags}
    assert found.distrusted == bool(flags - {"train mode"})
    assert not dataclasses.replace(found, flags=tuple(f for f in found.flags if f.name == "train mode")).distrusted


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({}, "eps=8/255"),
        ({"eps": 0.1, "threat_model": "corruptions"}, "Linf"),
        ({"eps": 0.1, "to_disk": True}, "model_name"),
        ({"eps": "much"}, "8/255"),
        ({"eps": 0.1, "n_examples": -1}, "n_examples"),
        ({"eps": 0.1, "device": "warp"}, "device"),
        ({"eps": 0.1, "preprocessing": "Res256Crop224"}, "preprocessing"),
        ({"eps": 0.1, "corruptions_data_dir": "here"}, "corruptions_data_dir"),
    ],
)
def test_what_is_missing_is_said(halves: Dataset, options: dict[str, object], keyword: str) -> None:
    with pytest.raises(InputError, match=keyword):
        excite.benchmark(Halves(), **{"n_examples": 5, "dataset": halves} | options)  # type: ignore[arg-type]


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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A baseline of LeNet-5, trained for a moment and attacked."""
    folder = tmp_path_factory.mktemp("run")
    experiment = from_values(
        {
            "name": "moment",
            "data": {"name": "mnist-sample", "train_examples": 160, "test_examples": 24},
            "model": {"name": "lenet5", "normalize": True},
            "training": {"epochs": 1, "batch_size": 32, "schedule": {"kind": "constant", "rate": 0.2}},
            "attacks": {"PGD": {"kind": "pgd", "eps": "8/255", "step": "2/255", "steps": 5, "random_start": True}},
            "arms": ["baseline"],
        }
    )
    Run(folder, experiment, console=Console()).all()
    return RunFolder(folder)


def test_an_exported_arm_attacks_to_the_same_verdicts(run: RunFolder, tmp_path: Path) -> None:
    folder = export(run, "baseline", tmp_path / "model")
    parts = assemble(run.experiment, device="cpu")
    again = excite.evaluate(from_pretrained(folder), parts.test.floats(), parts.test.labels, parts.attacks, seed=0)
    before = run.arm("baseline").evaluation
    assert before is not None
    for name in ("clean", "PGD"):
        assert np.array_equal(again.outcomes(name), before.outcomes(name))
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert str(before.robust["PGD"]) in card
    assert "Intended use" in card


AUTOATTACK = {"kind": "autoattack", "eps": "8/255"}


@pytest.mark.parametrize(
    ("options", "standard"),
    [
        (AUTOATTACK, True),
        (AUTOATTACK | {"version": "standard", "norm": "l2", "seed": 3}, True),
        (AUTOATTACK | {"eps": ["4/255", "8/255"]}, True),
        (AUTOATTACK | {"version": "standard", "iterations": 5}, False),
        (AUTOATTACK | {"version": "standard", "queries": 100}, False),
        (AUTOATTACK | {"version": "rand"}, False),
        (AUTOATTACK | {"members": ["apgd-ce"]}, False),
    ],
)
def test_only_standard_autoattack_has_a_row(
    run: RunFolder, tmp_path: Path, options: dict[str, object], standard: bool
) -> None:
    copy = with_attacks(run, tmp_path / "run", {"PGD": run.experiment.attacks["PGD"], "A": options})
    folder = export(copy, "baseline", tmp_path / "model")
    evaluation = copy.arm("baseline").evaluation
    assert evaluation is not None
    rows = list((folder / "model_info").rglob("*.json"))
    assert [row.name for row in rows] == ["moment-baseline.json"] * standard
    for row in rows:
        record = json.loads(row.read_text())
        assert record.keys() == KEYS
        assert record["clean_acc"] == f"{100 * evaluation.clean.value:.2f}"
        assert record["autoattack_acc"] == f"{100 * evaluation.robust['A'].value:.2f}"
        assert (record["eps"], record["additional_data"]) == ("8/255", False)
        assert row.parent.name == ("L2" if options.get("norm") == "l2" else "Linf")


def test_attacks_without_a_radius_have_no_row(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS, "blind", lambda: as_attack(lambda _model, x, _y: x))
    copy = with_attacks(run, tmp_path / "run", {"A": {"kind": "blind"}})
    folder = export(copy, "baseline", tmp_path / "model")
    assert from_pretrained(folder)
    assert not (folder / "model_info").exists()


def test_own_images_have_no_row_and_their_path_stays_private(tmp_path: Path) -> None:
    file, digits = tmp_path / "private" / "digits.npz", excite.data.load("mnist-sample")
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
    assert not (folder / "model_info").exists()
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "trained on digits" in card
    assert "private" not in card


def with_attacks(run: RunFolder, folder: Path, attacks: Mapping[str, Mapping[str, object]]) -> RunFolder:
    """The run as if it had met these attacks, each with the verdicts of its own PGD."""
    shutil.copytree(run.path, folder)
    write_json(folder / EXPERIMENT, run.experiment.to_json() | {"attacks": attacks})
    before = run.arm("baseline").evaluation
    assert before is not None
    verdicts = dict.fromkeys(attacks, before.attacks["PGD"])
    dataclasses.replace(before, attacks=verdicts).save(folder / "baseline" / EVALUATION)
    return RunFolder(folder)


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


def test_on_the_command_line(run: RunFolder, tmp_path: Path, call: Callable[..., tuple[str, str]]) -> None:
    printed, _ = call("export", run.path, "--arm", "baseline", "--to", "robustbench", "--out", tmp_path / "model")
    assert f'from_pretrained("{tmp_path / "model"}")' in printed
    assert (tmp_path / "model/model.safetensors").exists()
