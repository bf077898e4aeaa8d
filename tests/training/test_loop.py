import os
import signal
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from excite import data, models
from excite.data.augment import crop_flip
from excite.data.batches import epoch_batches
from excite.errors import InputError, InterruptedRunError
from excite.objectives import AWP, PGDAT, RST, Objective, Trades, standard_loss
from excite.schedules import constant, step
from excite.trace import Recorder, Trace
from excite.training import EpochMetrics, read_metrics, train
from tests.training.stopped import StopAfter, same_weights

Train = Callable[..., tuple[nn.Module, object]]


def test_equals_a_plain_loop(train_lenet: Train, digits: data.Split) -> None:
    trained, _ = train_lenet(epochs=2, momentum=0.9, schedule=step(0.1, milestones=(1,)), seed=3)
    torch.manual_seed(0)
    plain = models.create("lenet5", input_shape=(1, 28, 28))
    velocity = [torch.zeros_like(parameter) for parameter in plain.parameters()]
    for epoch, rate in enumerate((0.1, 0.01)):
        for x, y in epoch_batches(digits, batch_size=64, seed=3, epoch=epoch):
            gradients = torch.autograd.grad(cross_entropy(plain(x), y), list(plain.parameters()))
            with torch.no_grad():
                for parameter, gradient, v in zip(plain.parameters(), gradients, velocity, strict=True):
                    v.mul_(0.9).add_(gradient)
                    parameter.sub_(rate * v)
    for mine, theirs in zip(trained.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_metrics_hold_every_epoch(train_lenet: Train, tmp_path: Path) -> None:
    seen: list[EpochMetrics] = []
    _, training = train_lenet(
        folder=tmp_path,
        schedule=step(0.1, milestones=(2,)),
        after_epoch=lambda model: {"training": model.training},
        on_epoch=seen.append,
    )
    assert seen == read_metrics(tmp_path)
    assert [(line.epoch, round(line.rate, 6)) for line in read_metrics(tmp_path)] == [(1, 0.1), (2, 0.1), (3, 0.01)]
    assert list(training.epochs) == read_metrics(tmp_path)  # type: ignore[attr-defined]
    assert training.epochs[-1].loss < training.initial_loss  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [torch.tensor(0.5), torch.tensor([0.5]), np.float32(0.5), np.array(0.5), 0.5])
def test_what_is_measured_may_be_any_number(train_lenet: Train, tmp_path: Path, number: object) -> None:
    train_lenet(folder=tmp_path, epochs=1, steps=1, after_epoch=lambda _: {"half": number})
    assert read_metrics(tmp_path)[0].extra == {"half": 0.5}


@pytest.mark.parametrize(
    ("step_number", "number"),
    [(3, signal.SIGINT), (5, signal.SIGTERM), (9, signal.SIGTERM), (15, signal.SIGTERM)],  # of 15
)
def test_a_stopped_run_ends_bit_identical(
    train_lenet: Train, tmp_path: Path, step_number: int, number: signal.Signals
) -> None:
    whole, uninterrupted = train_lenet(augment=crop_flip, folder=tmp_path / "whole")
    with pytest.raises(InterruptedRunError, match="same command") as stopped:
        train_lenet(augment=crop_flip, folder=tmp_path / "stopped", on_progress=StopAfter(step_number, number))
    assert stopped.value.exit_code == 128 + number
    resumed, training = train_lenet(augment=crop_flip, folder=tmp_path / "stopped")
    assert same_weights(whole, resumed)
    assert [line.loss for line in training.epochs] == [line.loss for line in uninterrupted.epochs]  # type: ignore[attr-defined]
    assert len(read_metrics(tmp_path / "stopped")) == 3


@pytest.mark.parametrize(
    "objective", [standard_loss, Trades(steps=2), PGDAT(steps=2, random_start=True), AWP(steps=2), RST(steps=2)]
)
def test_a_model_with_dropout_resumes_bit_identical(digits: data.Split, tmp_path: Path, objective: Objective) -> None:
    def run(folder: Path, on_progress: StopAfter | None = None) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(
            model,
            digits,
            objective,
            optimizer,
            constant(0.1),
            epochs=2,
            batch_size=64,
            folder=folder,
            on_progress=on_progress,
        )
        return model

    whole = run(tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        run(tmp_path / "stopped", StopAfter(7, signal.SIGTERM))
    assert same_weights(whole, run(tmp_path / "stopped"))


@pytest.mark.parametrize("objective", [standard_loss, Trades(steps=2), PGDAT(steps=2)])
def test_bfloat16_trains_nearly_the_same_and_resumes_bit_identical(
    train_lenet: Train, tmp_path: Path, objective: Objective
) -> None:
    options: dict[str, Any] = {"objective": objective, "precision": "bf16", "epochs": 2, "rate": 0.02}
    model, exact = train_lenet(**options | {"precision": "float32"})
    whole, rounded = train_lenet(**options, folder=tmp_path / "whole")
    for first, second in zip(exact.epochs, rounded.epochs, strict=True):  # type: ignore[attr-defined]
        assert first.loss != second.loss == pytest.approx(first.loss, rel=0.05)
    assert {parameter.dtype for parameter in whole.parameters()} == {torch.float32}
    assert not same_weights(model, whole)
    with pytest.raises(InterruptedRunError):
        train_lenet(**options, folder=tmp_path / "stopped", on_progress=StopAfter(3, signal.SIGTERM))
    with pytest.raises(InputError, match="precision"):
        train_lenet(**options | {"precision": "float32"}, folder=tmp_path / "stopped")
    resumed, _ = train_lenet(**options, folder=tmp_path / "stopped")
    assert same_weights(whole, resumed)


def test_an_attack_of_the_objective_draws_from_seed_epoch_and_step_alone(train_lenet: Train) -> None:
    def losses(disturb: Callable[[int, int], object] | None, seed: int = 0) -> list[float]:
        _, training = train_lenet(objective=Trades(steps=1), on_progress=disturb, epochs=2, steps=2, seed=seed)
        return [epoch.loss for epoch in training.epochs]  # type: ignore[attr-defined]

    assert losses(None) == losses(lambda *_: torch.rand(5)) != losses(None, seed=1)


def recorded_run(digits: data.Split, folder: Path, on_progress: StopAfter | None = None) -> tuple[nn.Module, Trace]:
    torch.manual_seed(0)
    model = models.create("lenet5", input_shape=(1, 28, 28))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = (digits.floats()[:64], digits.labels[:64])
    recorder = Recorder(model, optimizer, probe=probe, slopes_per_epoch=2, curvature_every=1, folder=folder / "moments")
    options = {"epochs": 3, "batch_size": 64, "folder": folder, "recorder": recorder, "on_progress": on_progress}
    train(model, digits, standard_loss, optimizer, constant(0.1), **options)  # type: ignore[arg-type]
    return model, recorder.trace


def test_the_recorder_changes_nothing_and_resumes_with_the_run(
    train_lenet: Train, digits: data.Split, tmp_path: Path
) -> None:
    plain, _ = train_lenet(momentum=0.0)
    watched, trace = recorded_run(digits, tmp_path / "whole")
    assert same_weights(plain, watched)
    assert (len(trace), len(trace.slopes), len(trace.curvatures)) == (3, 7, 3)
    with pytest.raises(InterruptedRunError):
        recorded_run(digits, tmp_path / "stopped", StopAfter(8, signal.SIGTERM))
    resumed, resumed_trace = recorded_run(digits, tmp_path / "stopped")
    assert same_weights(plain, resumed)
    for field in fields(Trace):
        assert np.array_equal(getattr(trace, field.name), getattr(resumed_trace, field.name)), field.name


def test_the_recorder_sees_that_the_first_step_is_in_bfloat16(digits: data.Split) -> None:
    model = models.create("lenet5", input_shape=(1, 28, 28))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer)
    options: dict[str, Any] = {"epochs": 1, "batch_size": 64, "precision": "bf16", "recorder": recorder}
    train(model, digits, standard_loss, optimizer, constant(0.1), **options)
    assert len(recorder.trace.slopes)
    assert not recorder.problems


def test_a_signal_while_the_last_epoch_is_measured_stops_whoever_trains(train_lenet: Train) -> None:
    def measured(_: nn.Module) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return {}

    with pytest.raises(InterruptedRunError, match="1 of 1 epochs"):
        train_lenet(epochs=1, after_epoch=measured)


def test_a_signal_after_the_run_has_its_old_meaning(train_lenet: Train) -> None:
    before = signal.getsignal(signal.SIGINT)
    train_lenet(epochs=1)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_is_not_trained_again(train_lenet: Train, tmp_path: Path) -> None:
    first, _ = train_lenet(folder=tmp_path)
    again, training = train_lenet(folder=tmp_path, on_progress=StopAfter(1, signal.SIGTERM))
    assert same_weights(first, again)
    assert len(training.epochs) == 3  # type: ignore[attr-defined]


def test_a_longer_run_goes_on_where_a_shorter_one_ended(train_lenet: Train, tmp_path: Path) -> None:
    train_lenet(folder=tmp_path, epochs=2)
    continued, _ = train_lenet(folder=tmp_path, epochs=3)
    whole, _ = train_lenet(epochs=3)
    assert same_weights(whole, continued)


def test_without_its_checkpoint_it_begins_anew_and_forgets_the_epochs_before(
    train_lenet: Train, tmp_path: Path
) -> None:
    train_lenet(folder=tmp_path, epochs=2)
    (tmp_path / "checkpoint.json").unlink()
    _, training = train_lenet(folder=tmp_path, rate=0.05, epochs=1)
    assert read_metrics(tmp_path) == list(training.epochs)  # type: ignore[attr-defined]
    _, training = train_lenet(folder=tmp_path, rate=0.05, epochs=2)
    assert [line.rate for line in training.epochs] == [0.05, 0.05]  # type: ignore[attr-defined]


def test_images_that_do_not_fit_are_refused(train_lenet: Train) -> None:
    images, labels = torch.zeros(4, 3, 28, 28, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(InputError, match="3, 28, 28"):
        train_lenet(data=data.Split(images, labels))


def test_labels_out_of_range_are_refused(train_lenet: Train) -> None:
    images, labels = torch.zeros(4, 1, 28, 28, dtype=torch.uint8), torch.full((4,), 10)
    with pytest.raises(InputError, match="num_classes=11"):
        train_lenet(data=data.Split(images, labels))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs is 1.5"),
        ({"epochs": True}, "epochs is True"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": "64"}, "batch_size is '64'"),
        ({"steps": -1}, "steps is -1"),
        ({"steps": 0}, "steps is 0"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"schedule": 0.1}, "schedules.constant"),
        ({"precision": "fp8"}, "bf16"),
    ],
)
def test_what_cannot_be_trained_with_is_refused_with_the_cure(
    train_lenet: Train, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train_lenet(**wrong)


def test_an_optimizer_of_another_model_is_refused(digits: data.Split) -> None:
    model, other = (nn.Sequential(nn.Flatten(), nn.Linear(784, 10)) for _ in range(2))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.raises(InputError, match="optimizer"):
        train(model, digits, standard_loss, optimizer, constant(0.1), epochs=1, batch_size=64)
    some = torch.optim.SGD([model.get_parameter("1.bias")], lr=0.1)  # the rest is left as it is, on purpose
    assert train(model, digits, standard_loss, some, constant(0.1), epochs=1, batch_size=64).epochs


def test_a_batch_of_one_image_is_refused_where_batch_norm_cannot_take_it(digits: data.Split) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.get_buffer("2.running_mean").clone()
    for images, batch_size in ((1, 64), (65, 64), (64, 1)):
        with pytest.raises(InputError, match="batch size"):
            train(
                model, digits.subset(images), standard_loss, optimizer, constant(0.1), epochs=1, batch_size=batch_size
            )
    assert torch.equal(model.get_buffer("2.running_mean"), before)
    train(model, digits.subset(65), standard_loss, optimizer, constant(0.1), epochs=1, batch_size=64, steps=1)


def test_batches_of_two_kinds_of_images_are_all_full(digits: data.Split) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    both = data.Mixture(digits, digits, epoch_samples=17)  # 16 and 1, if they were not
    train(model, both, standard_loss, optimizer, constant(0.1), epochs=1, batch_size=16)


def test_a_folder_may_be_text(train_lenet: Train, tmp_path: Path) -> None:
    train_lenet(epochs=1, folder=str(tmp_path / "run"))
    assert len(read_metrics(tmp_path / "run")) == 1


def test_steps_cut_every_epoch_short(train_lenet: Train) -> None:
    seen: list[tuple[int, int]] = []
    train_lenet(steps=2, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 6) for number in range(1, 7)]
