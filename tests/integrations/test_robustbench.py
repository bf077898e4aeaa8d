"""benchmark() takes and returns what RobustBench does, and its record has the leaderboard's keys."""

import dataclasses
import inspect
import json
import warnings
from enum import Enum
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import excite
from excite import data
from excite.attacks import AttackWarning
from excite.data import Dataset
from excite.errors import InputError
from excite.evaluation import evaluate

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
