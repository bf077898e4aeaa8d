"""The accuracy that a batch size has to reach is the paper's where nobody says another."""

from pathlib import Path

import pytest

from excite.console import Console
from excite.errors import DivergedError, InputError
from excite.runs import load
from excite.runs.procedure import Run
from excite.sweeps import check_batch_sizes, try_batch_sizes


def test_a_size_that_learns_too_little_is_not_chosen(tiny: Path, tmp_path: Path) -> None:
    experiment = load(str(tiny), overrides=["training.epochs=4", "data.train_examples=64"])
    choice = try_batch_sizes({32: Run(tmp_path / "32", experiment, console=Console())})
    assert (choice.threshold, choice.chosen) == (0.8, None)
    assert choice.accuracies[32] < 0.8
    lenient = try_batch_sizes({32: Run(tmp_path / "32", experiment, console=Console())}, threshold=0.0)
    assert lenient.chosen == 32


def test_two_epochs_have_no_angle_and_are_refused_before_any_training(tiny: Path) -> None:
    with pytest.raises(InputError, match="at least 3"):
        check_batch_sizes(load(str(tiny), overrides=["training.epochs=2"]), [32])


def test_where_every_size_diverges_that_is_said(tiny: Path, tmp_path: Path) -> None:
    wild = load(str(tiny), overrides=["training.schedule.rate=1e6", "data.train_examples=64"])
    with pytest.raises(DivergedError, match="lower rate"):
        try_batch_sizes({32: Run(tmp_path / "32", wild, console=Console())})
