"""The accuracy that a batch size has to reach is the paper's where nobody says another."""

from pathlib import Path

import pytest

from excite.console import Console
from excite.runs import load
from excite.runs.batch_size import papers_threshold, try_batch_sizes
from excite.runs.procedure import Run


@pytest.mark.parametrize(("data_set", "threshold"), [("cifar10", 0.8), ("cifar100", 0.6), ("mnist", 0.8)])
def test_the_paper_asks_for_less_with_a_hundred_classes(data_set: str, threshold: float) -> None:
    assert papers_threshold(data_set) == threshold


def test_a_size_that_learns_too_little_is_not_chosen(tiny: Path, tmp_path: Path) -> None:
    experiment = load(str(tiny), overrides=["training.epochs=4", "data.train_examples=64"])
    choice = try_batch_sizes({32: Run(tmp_path / "32", experiment, console=Console())})
    assert (choice.threshold, choice.chosen) == (0.8, None)
    assert choice.accuracies[32] < 0.8
