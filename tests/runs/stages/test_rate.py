"""A grid search spends what finding 1/L may cost, and can be stopped anywhere."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from excite.console import Console
from excite.data import Split
from excite.errors import DivergedError, InputError
from excite.runs import load
from excite.runs.assemble import Parts, assemble
from excite.runs.procedure import Run
from excite.runs.records import GridSearch, Trial
from excite.runs.stages.rate import grid, grid_search, hold_out, shrunk, winner_of
from excite.schedules import step

SHORT = ["lipschitz.steps=4"]


@pytest.fixture
def parts(tiny: Path) -> Parts:
    return assemble(load(str(tiny), overrides=SHORT))


def test_the_grid_is_geometric_around_the_baseline() -> None:
    rates = grid(0.1, 5)
    assert rates[0] == pytest.approx(0.1 / 8)
    assert rates[2] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0.8)
    factors = [later / earlier for earlier, later in itertools.pairwise(rates)]
    assert factors == pytest.approx([math.sqrt(8)] * 4)


def rows(split: Split) -> set[bytes]:
    return {image.numpy().tobytes() for image in split.images}


def test_images_that_judge_are_not_trained_on() -> None:
    images: Tensor = torch.arange(100, dtype=torch.uint8).reshape(100, 1, 1, 1)
    split = Split(images, torch.zeros(100, dtype=torch.int64))
    rest, held_out = hold_out(split, 0)
    assert (len(rest), len(held_out)) == (90, 10)
    assert rows(rest) | rows(held_out) == rows(split)
    assert torch.equal(held_out.images, hold_out(split, 0)[1].images)
    assert not torch.equal(held_out.images, hold_out(split, 1)[1].images)


def test_a_short_training_goes_through_the_whole_schedule() -> None:
    schedule = step(1.0, milestones=(5, 8), factor=0.5)
    assert [shrunk(schedule, 10, 4)(epoch) for epoch in range(4)] == [1.0, 1.0, 0.5, 0.5]
    assert [shrunk(schedule, 10, 10)(epoch) for epoch in range(10)] == [schedule(epoch) for epoch in range(10)]


def test_the_budget_is_that_of_finding_the_poe_rate(parts: Parts, tmp_path: Path) -> None:
    taken: list[tuple[int, int]] = []
    search = grid_search(parts, 3, folder=tmp_path / "search", on_progress=lambda *step: taken.append(step))
    assert search.budget == 2 * 10 + 10 * 4  # the baseline's epochs and steps; the edge's runs and steps
    assert search.steps == 18  # of 20: three epochs of 6, since 9 batches hold the remaining images
    assert taken[-1] == (54, 60)
    assert search.held_out == 32
    assert search.attack == "PGD-3"
    assert search.winner == winner_of(search.trials).rate
    assert [trial.rate for trial in search.trials] == pytest.approx([0.05 / 8, 0.05, 0.4])


DIVERGED = Trial(8.0, None, None, "diverged")


@pytest.mark.parametrize(
    ("accuracies", "winner"),
    [
        ([(0.10, 0.10), (0.95, 0.08)], 1),  # one class for every image, and a trained network
        ([(0.95, 0.40), (0.93, 0.50)], 1),  # two points less clean accuracy are allowed
        ([(0.95, 0.40), (0.92, 0.50)], 0),
        ([(0.95, 0.40), (0.94, 0.41), (0.92, 0.60)], 1),
        ([(0.94, 0.40), (0.95, 0.40)], 1),  # equally robust
        ([(0.10, 0.10), (0.10, 0.10)], 0),
    ],
)
def test_the_winner_is_the_most_robust_of_the_accurate(accuracies: list[tuple[float, float]], winner: int) -> None:
    trials = [Trial(rate, clean, robust, None) for rate, (clean, robust) in enumerate(accuracies)]
    assert winner_of([*trials, DIVERGED]).rate == winner


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1))
def test_no_accurate_trial_is_more_robust_than_the_winner(accuracies: list[tuple[int, int]]) -> None:
    trials = [Trial(0.1, clean / 1000, robust / 1000, None) for clean, robust in accuracies]
    winner = winner_of(trials)
    best = max(clean for clean, _ in accuracies)
    assert winner.robust_accuracy == max(robust for clean, robust in accuracies if clean >= best - 20) / 1000


def test_the_summary_tells_clean_accuracies_too() -> None:
    trials = (Trial(1.0, 0.1, 0.1, None), Trial(0.1, 0.95, 0.08, None), DIVERGED)
    text = str(GridSearch(trials, winner=0.1, steps=20, budget=60, held_out=32, attack="PGD-3"))
    assert all(part in text for part in ("0.1 is", "2 points", "95.0%", "8.0%", "8: diverged", "32", "PGD-3"))


class StoppedError(Exception):
    pass


def test_a_stopped_search_goes_on(parts: Parts, tmp_path: Path) -> None:
    whole = grid_search(parts, 2, folder=tmp_path / "whole")

    def stop(done: int, total: int) -> None:
        if done == 44:  # in the second trial's second epoch
            raise StoppedError

    with pytest.raises(StoppedError):
        grid_search(parts, 2, folder=tmp_path / "stopped", on_progress=stop)
    taken: list[int] = []
    assert grid_search(parts, 2, folder=tmp_path / "stopped", on_progress=lambda done, _: taken.append(done)) == whole
    assert 0 < len(taken) < 24  # the first trial is not repeated, nor the second one's first epoch


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ([], "grid:12"),
        (["training.epochs=1", "training.steps=1"], "Train longer"),
    ],
)
def test_a_grid_that_cannot_be_searched_is_refused_before_anything_trains(
    tiny: Path, tmp_path: Path, changes: list[str], keyword: str
) -> None:
    twelve = ["data.train_examples=192", 'lipschitz={method="stated",constant=5.0}', *changes]  # 2 epochs of 6 steps
    run = Run(tmp_path / "run", load(str(tiny), overrides=twelve), console=Console())
    with pytest.raises(InputError, match=keyword):
        run.all(["baseline", "grid:50"])
    assert not run.files.arms
    with pytest.raises(InputError, match=keyword):
        grid_search(run.parts, 50, folder=tmp_path / "search")


def test_a_rate_that_diverges_does_not_win(tiny: Path, tmp_path: Path) -> None:
    wild = assemble(load(str(tiny), overrides=[*SHORT, "training.schedule.rate=100.0"]))
    with pytest.raises(DivergedError, match=r"12\.5 to 800"):
        grid_search(wild, 2, folder=tmp_path / "wild")
    half = assemble(load(str(tiny), overrides=[*SHORT, "training.schedule.rate=8.0"]))
    search = grid_search(half, 2, folder=tmp_path / "half")
    assert search.winner == 1.0
    assert "diverged" in (search.trials[1].problem or "")
