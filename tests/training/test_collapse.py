"""A training that has lost its way is told from one that learns."""

import math
import signal
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from excite import data, models
from excite.errors import DivergedError, InputError, InterruptedRunError
from excite.files import read_json
from excite.objectives import standard_loss
from excite.schedules import constant
from excite.training import TrainingHistory, read_metrics, resumable, train
from excite.training.collapse import broken_number, diagnose, highest_by_chance, measured_by
from tests.training.stopped import StopAfter, same_weights

Train = Callable[..., tuple[nn.Module, object]]


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([0.5, math.nan], "became nan"),
        ([math.inf], "became inf"),
        ([3.0], "above its initial value 2.3"),
        ([0.5, 2.31], "back at 2.31"),
        ([0.5, 2.27], "back at 2.27"),
    ],
)
def test_lost_runs_are_named(losses: list[float], message: str) -> None:
    assert message in (diagnose(losses, 2.3) or "")


@pytest.mark.parametrize("losses", [[2.3], [2.31, 2.305, 2.3], [2.2, 2.29], [0.5, 1.5], [1.0, 0.1]])
def test_slow_and_noisy_runs_are_not(losses: list[float]) -> None:
    assert diagnose(losses, 2.3) is None


@pytest.mark.parametrize(
    ("losses", "options", "lost"),
    [  # initial loss 2
        ([2.05], {}, True),  # 2% above it is 2.04
        ([2.03], {}, False),
        ([1.79, 2.0], {}, True),  # 10% below it is 1.8
        ([1.81, 2.0], {}, False),
        ([1.0, 1.97], {}, True),  # back within 2%
        ([1.0, 1.95], {}, False),
        ([1.9, 1.0, 2.0], {}, True),  # learned in between
        ([2.6], {"steps": 50}, True),
        ([2.6], {"steps": 49}, False),
        ([2.6], {"images": 5000}, True),
        ([2.6], {"images": 4999}, False),
        ([2.6], {"ending": 2.01}, True),
        ([2.6], {"ending": 2.0}, False),
    ],
)
def test_where_a_collapse_begins(losses: list[float], options: dict[str, Any], lost: bool) -> None:
    assert (diagnose(losses, 2.0, **options) is not None) is lost


def test_short_epochs_are_judged_together() -> None:
    """Ten steps at a large rate may cost some loss; fifty that do are a collapse, and so is ten times the loss."""
    bad_start = [2.6, 2.5, 2.2, 1.9, 1.8, 1.7]
    assert all(diagnose(bad_start[:end], 2.3, steps=10) is None for end in range(1, 7))
    assert all(diagnose([2.6] * end, 2.3, steps=10) is None for end in range(1, 5))
    assert "over 5 epochs was 2.6, above" in (diagnose([2.6] * 5, 2.3, steps=10) or "")
    assert "above its initial value" in (diagnose([30.0], 2.3, steps=10) or "")
    assert "over 2 epochs was 2.5, above" in (diagnose([2.6, 2.4], 2.3, steps=10, over=True) or "")
    assert diagnose([2.5, 2.0], 2.3, steps=10, over=True) is None
    assert diagnose([2.42], 2.35, ending=2.2) is None
    assert "over an epoch was 2.42, above" in (diagnose([2.42], 2.35, ending=2.36) or "")
    assert diagnose([9.0, 2.6, 2.4, 2.3, 2.2], 2.3, steps=10) is None
    assert "0.5 in the best 5 epochs, is back at 2.3" in (diagnose([0.5] * 5 + [2.3] * 5, 2.3, steps=10) or "")


def test_epochs_of_few_images_are_judged_together() -> None:
    """Adversarial training in batches of 18: 2.36 in its first epoch, of 56 steps, 2.17 in its fifth."""
    bad_start = [2.36, 2.25, 2.21, 2.18, 2.17]
    assert all(diagnose(bad_start[:end], 2.3, steps=56, images=1000) is None for end in range(1, 6))
    assert diagnose([2.36] * 4, 2.3, steps=56, images=1000) is None
    assert "over 5 epochs was 2.36, above" in (diagnose([2.36] * 5, 2.3, steps=56, images=1000) or "")


@given(st.lists(st.floats(0.0, 0.97), min_size=1), st.floats(1e-6, 1e6))
def test_below_the_initial_loss_nothing_is_wrong(shares: list[float], initial: float) -> None:
    assert diagnose([share * initial for share in shares], initial) is None


@pytest.mark.parametrize("losses", [[-1.01], [-1.0, -1.5, -1.6], [-0.99], [-1.05, -1.0]])
def test_a_negative_loss_that_falls_is_sound(losses: list[float]) -> None:
    assert diagnose(losses, -1.0) is None


@pytest.mark.parametrize(
    ("losses", "message"), [([-0.9], "above its initial value -1"), ([-2.0, -1.0], "is back at -1"), ([8.1], "was 8.1")]
)
def test_a_negative_loss_that_rises_is_lost(losses: list[float], message: str) -> None:
    assert message in (diagnose(losses, -1.0) or "")


def test_a_negative_loss_is_hopeless_as_far_above_as_a_positive_one() -> None:
    assert "over an epoch was 8.1" in (diagnose([8.1], -1.0, steps=10) or "")
    assert diagnose([7.9], -1.0, steps=10) is None


@given(st.floats(0.9 * math.log(10), 1e3), st.integers(64, 10_000))
def test_an_untrained_network_is_measured_by_its_first_batch(initial: float, batch_size: int) -> None:
    assert measured_by(initial, math.log(10), batch_size) == (initial, "its initial value")


def test_what_a_first_batch_does_not_tell_guessing_does() -> None:
    guessing = math.log(10)
    assert measured_by(0.3, None, 64)[0] == 0.3
    assert measured_by(0.3, guessing, 1000)[0] == guessing
    assert measured_by(2.2, guessing, 63)[0] == guessing
    assert measured_by(2.2, guessing, 64)[0] == 2.2
    assert measured_by(2.5, guessing, 8)[0] == 2.5


LOSSES = st.lists(st.floats(0.1, 10.0), min_size=2, max_size=16)


def test_chance_allows_four_standard_errors_above_the_estimated_start() -> None:
    unmoved = [2.0, 2.4, 2.5, 2.3]
    allowed = 4 * stdev(unmoved) * math.sqrt(1 / 4 + 1 / 100)
    assert highest_by_chance(unmoved, unmoved, 100) == pytest.approx(2.3 + allowed)
    learned = [loss - 0.5 for loss in unmoved]
    assert highest_by_chance(unmoved, learned, 100) == pytest.approx(2.3 + allowed)
    assert highest_by_chance([2.0], unmoved, 100) == pytest.approx(2.3 + allowed)
    assert highest_by_chance([-2.0, -1.6], [-2.0, -1.6], 1) == pytest.approx(-1.8 + 4 * stdev([2.0, 1.6]) * 1.5**0.5)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ([2.3, 2.3], [2.4, 2.3]),  # the first batch costs more
        ([2.3, 2.3, 2.3], [2.3, 2.4, 2.4]),  # all of them together do
        ([2.3, 2.9, 2.9], [2.3, 2.4, 2.5]),  # the steps after the first one did
        ([2.0, 2.0], [2.06, 2.002]),  # the first batch costs 3% more, their mean 1.6%
        ([2.0, 2.0], [2.0, 1.88]),  # the first batch costs the same, the mean 3% less
        ([2.3, 2.3], [2.3, math.inf]),
        ([2.3, 2.3], [math.nan, 2.3]),
        ([-2.3, -2.3], [-2.2, -2.3]),
    ],
)
def test_chance_does_not_explain_a_loss_that_has_risen(first: list[float], again: list[float]) -> None:
    assert highest_by_chance(first, again, 100) == -math.inf


@given(LOSSES, st.integers(1, 1000))
def test_a_network_that_has_not_moved_has_not_diverged(losses: list[float], steps: int) -> None:
    by_chance = highest_by_chance(losses, losses, steps)
    assert diagnose([fmean(losses)], losses[0], by_chance=by_chance + 1e-9) is None


@given(LOSSES, st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_chance_only_removes_objections(losses: list[float], initial: float, by_chance: float) -> None:
    assert diagnose(losses, initial, by_chance=by_chance) is None or diagnose(losses, initial) is not None


def test_chance_does_not_explain_what_was_learned_and_lost() -> None:
    assert "back at" in (diagnose([0.5, 2.3], 2.3, by_chance=2.5) or "")
    assert "nan" in (diagnose([math.nan], 2.3, by_chance=2.5) or "")
    assert "above" in (diagnose([2.6], 2.3, by_chance=2.5) or "")


def test_not_a_number_stops_and_keeps_the_last_good_checkpoint(train_lenet: Train, tmp_path: Path) -> None:
    def explode_in_the_second_epoch(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        loss = standard_loss(model, x, y)
        return loss * float("nan") if len(calls) == 7 else loss

    calls: list[int] = []
    with pytest.raises(DivergedError, match="nan"):
        train_lenet(folder=tmp_path, objective=explode_in_the_second_epoch)
    kept, _ = train_lenet(folder=tmp_path, epochs=1)
    good, _ = train_lenet(epochs=1)
    assert same_weights(kept, good)


def spoiled_loss(model: nn.Module, loss: Tensor) -> Tensor:
    return loss * float("nan")


def spoiled_gradient(model: nn.Module, loss: Tensor) -> Tensor:
    """The same loss, whose gradient is not a number: that of √|x| at 0."""
    return loss + (0 * next(model.parameters()).flatten()[0]).abs().sqrt()


@pytest.mark.parametrize("spoil", [spoiled_loss, spoiled_gradient, None])
@pytest.mark.parametrize(("at", "kept"), [(1, True), (8, True), (15, True), (15, False)])
def test_a_number_that_is_none_is_never_kept(
    train_lenet: Train,
    tmp_path: Path,
    at: int,
    spoil: Callable[[nn.Module, Tensor], Tensor] | None,
    kept: bool,
) -> None:
    models_seen: list[nn.Module] = []

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        models_seen.append(model)
        loss = standard_loss(model, x, y)
        return spoil(model, loss) if spoil and len(models_seen) == at else loss

    def spoil_parameter(done: int, _total: int) -> None:
        if spoil is None and done == at:
            with torch.no_grad():
                next(models_seen[-1].parameters()).flatten()[0] = float("inf")

    folder = tmp_path if kept else None
    with pytest.raises(DivergedError, match="diverged"):
        train_lenet(folder=folder, objective=objective, on_progress=spoil_parameter)
    if not kept:
        return
    finished = (at - 1) // 5
    assert len(read_metrics(tmp_path)) == finished
    resumed, _ = train_lenet(folder=tmp_path)
    whole, _ = train_lenet()
    assert same_weights(whole, resumed)


def test_a_stop_does_not_save_what_is_no_number(train_lenet: Train, tmp_path: Path) -> None:
    calls: list[int] = []

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return standard_loss(model, x, y) * (float("nan") if len(calls) == 2 else 1.0)

    with pytest.raises(DivergedError, match="nan"):
        train_lenet(folder=tmp_path, objective=objective, on_progress=StopAfter(3, signal.SIGTERM))
    assert same_weights(train_lenet(folder=tmp_path)[0], train_lenet()[0])


def test_weights_that_are_no_numbers_from_the_start_are_refused(digits: data.Split, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    nn.init.constant_(model[1].bias, float("nan"))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"1\.bias"):
        train(model, digits, standard_loss, optimizer, constant(0.1), epochs=1, batch_size=64, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_rate_far_too_large_is_noticed(train_lenet: Train) -> None:
    with pytest.raises(DivergedError, match="1000"):
        train_lenet(rate=1e3)


def test_a_tiny_rate_is_no_collapse(train_lenet: Train) -> None:
    _, training = train_lenet(rate=5e-8, momentum=0.0)
    assert training.epochs[-1].loss == pytest.approx(training.initial_loss, rel=0.02)  # type: ignore[attr-defined]


def fine_tune(batch_size: int, rate: float, seed: int = 0) -> list[float]:
    """Go on with a network that has fitted all images but the 5% with wrong labels; the losses of its epochs."""
    torch.manual_seed(0)
    images = torch.randint(0, 256, (384, 1, 2, 2), dtype=torch.uint8)
    labels = ((images[:, 0, 0, 0] > 127) ^ (torch.rand(384) < 0.05)).long()
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        model.get_parameter("1.weight").zero_()[:, 0] = torch.tensor([-12.0, 12.0])
        model.get_parameter("1.bias").copy_(torch.tensor([6.0, -6.0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    options = {"epochs": 1, "batch_size": batch_size, "seed": seed}
    training = train(model, data.Split(images, labels), standard_loss, optimizer, constant(rate), **options)  # type: ignore[arg-type]
    return [epoch.loss for epoch in training.epochs]


@pytest.mark.parametrize("batch_size", [8, 64])
def test_a_lucky_first_batch_makes_no_collapse(batch_size: int) -> None:
    assert all(fine_tune(batch_size, 1e-4, seed)[0] < math.log(2) for seed in range(8))


def test_a_fitted_network_that_is_ruined_is_a_collapse() -> None:
    with pytest.raises(DivergedError, match=r"0\.693"):
        fine_tune(64, 1e3)


def test_only_parameters_must_be_finite() -> None:
    """Masks may be infinite, and so may what an optimizer remembers."""
    model = nn.Linear(1, 1)
    model.register_buffer("mask", torch.tensor([-math.inf]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    remembered = optimizer.state[model.weight]["momentum_buffer"] = torch.full((1, 1), math.inf)
    assert broken_number(model, optimizer) is None
    remembered.fill_(math.nan)
    assert "momentum_buffer" in (broken_number(model, optimizer) or "")
    model.get_buffer("mask").fill_(math.nan)
    assert "mask" in (broken_number(model, optimizer) or "")


def test_the_loss_of_an_objective_of_ones_own_is_measured_by_its_first_batch(train_lenet: Train) -> None:
    def small(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return standard_loss(model, x, y) / 100 * (1 if len(calls) == 1 else 2)

    calls: list[int] = []
    with pytest.raises(DivergedError, match=r"0\.02"):
        train_lenet(objective=small, rate=1e-4, steps=5, epochs=10)


def wide(dropout: float = 0.0) -> nn.Module:
    """An untrained network whose loss differs from batch to batch as much as a ResNet's."""
    linear = nn.Linear(784, 10)
    with torch.no_grad():
        linear.weight.mul_(3)
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Dropout(dropout), linear)


def train_slowly(model: nn.Module, split: data.Split, **options: Any) -> TrainingHistory:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    options = {"epochs": 2, "batch_size": 16} | options
    return train(model, split, standard_loss, optimizer, constant(1e-9), **options)


def looks_diverged(training: TrainingHistory) -> bool:
    """Whether the first batch alone says so."""
    return fmean(epoch.loss for epoch in training.epochs) > 1.02 * training.initial_loss


def test_frozen_networks_have_not_diverged(digits: data.Split) -> None:
    trainings = []
    for seed in range(40):
        torch.manual_seed(seed)
        trainings.append(train_slowly(wide(), digits.subset(160, seed), seed=seed))
    assert sum(map(looks_diverged, trainings)) > 5


@pytest.mark.parametrize("seed", range(3))
def test_a_frozen_resnet_has_not_diverged(digits: data.Split, seed: int) -> None:
    torch.manual_seed(seed)
    train_slowly(models.create("resnet8", input_shape=(1, 28, 28)), digits.subset(64, seed), seed=seed)


EASY = 8  # a seed whose first batch is an easy one


def train_from_an_easy_batch(digits: data.Split, **options: Any) -> tuple[nn.Module, TrainingHistory]:
    torch.manual_seed(EASY)
    model = wide(dropout=0.1)
    training = train_slowly(model, digits, batch_size=64, epochs=3, seed=EASY, **options)
    return model, training


def test_measuring_again_does_not_disturb_the_training(digits: data.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    model, training = train_from_an_easy_batch(digits)
    after = torch.rand(1)
    assert looks_diverged(training)
    monkeypatch.setattr(resumable, "diagnose", lambda *_args, **_options: None)
    undisturbed, _ = train_from_an_easy_batch(digits)
    assert same_weights(model, undisturbed)
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("stop", [2, 5, 7, 12])
def test_a_training_from_an_easy_batch_resumes_bit_identical(digits: data.Split, tmp_path: Path, stop: int) -> None:
    whole, _ = train_from_an_easy_batch(digits, folder=tmp_path / "whole")
    folder = tmp_path / "stopped"
    with pytest.raises(InterruptedRunError):
        train_from_an_easy_batch(digits, folder=folder, on_progress=StopAfter(stop, signal.SIGTERM))
    resumed, training = train_from_an_easy_batch(digits, folder=folder)
    assert same_weights(whole, resumed)
    assert looks_diverged(training)
    kept = [read_json(path / "checkpoint.json")["first_losses"] for path in (folder, tmp_path / "whole")]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 5
