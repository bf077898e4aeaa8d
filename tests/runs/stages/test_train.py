"""What is measured after every epoch leaves the training as it was."""

import json
from pathlib import Path

import pytest
import torch

from excite.console import Console
from excite.errors import InputError
from excite.evaluation import evaluate
from excite.runs import load
from excite.runs.assemble import assemble
from excite.runs.procedure import Run
from excite.runs.stages.train import epoch_accuracies


def test_the_first_attack_on_the_first_test_images(tiny: Path) -> None:
    parts = assemble(load(str(tiny), overrides=["record.attacked_examples=25"]))
    model = parts.new_model()
    measured = epoch_accuracies(parts, model)
    x, y = parts.test.floats(), parts.test.labels
    assert measured == {
        "test_accuracy": evaluate(model, x, y, {}).clean.value,
        "robust_accuracy": evaluate(model, x[:25], y[:25], parts.attacks).robust["PGD-3"].value,
        "attacked_clean_accuracy": evaluate(model, x[:25], y[:25], {}).clean.value,
    }


def test_recording_does_not_disturb_the_training(tiny: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "without", tmp_path / "with"]
    for folder, examples in zip(folders, (0, 40), strict=True):
        experiment = load(str(tiny), overrides=[f"record.attacked_examples={examples}"])
        Run(folder, experiment, console=Console()).train("baseline")
    without, with_attack = (
        [json.loads(line) for line in (folder / "baseline/metrics.jsonl").read_text().splitlines()]
        for folder in folders
    )
    assert [line["loss"] for line in without] == [line["loss"] for line in with_attack]
    assert [set(line["extra"]) for line in without] == [{"test_accuracy"}] * 2
    assert [set(line["extra"]) for line in with_attack] == [
        {"test_accuracy", "robust_accuracy", "attacked_clean_accuracy"}
    ] * 2
    assert without[-1]["extra"]["test_accuracy"] == with_attack[-1]["extra"]["test_accuracy"]


def test_random_numbers_and_modes_are_put_back(tiny: Path) -> None:
    parts = assemble(load(str(tiny), overrides=["record.attacked_examples=40"]))
    model = parts.new_model().train()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    epoch_accuracies(parts, model)
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_attack_is_needed(tiny: Path, tmp_path: Path) -> None:
    experiment = load(str(tiny), overrides=["record.attacked_examples=5", "attacks={}"])
    with pytest.raises(InputError, match="attacked_examples needs an attack"):
        Run(tmp_path / "run", experiment, console=Console())
    assert not (tmp_path / "run").exists()
