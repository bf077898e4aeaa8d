"""Batches in parts: the gradient of the whole batch, in the memory of a part."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from excite import data, models
from excite.console import Console
from excite.data.batches import Mixture
from excite.errors import InputError, InterruptedRunError
from excite.objectives import AWP, PGDAT, RST, Objective, Trades, standard_loss
from excite.runs import load
from excite.runs.procedure import Run
from excite.schedules import constant
from excite.trace import Recorder
from excite.training import descend, train
from excite.training.distributed import Ranks
from excite.training.loop import added, losses_of_parts
from tests.training.stopped import StopAfter, same_weights

Train = Callable[..., tuple[nn.Module, object]]


def lenet() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return models.create("lenet5", input_shape=(1, 28, 28))


def gradient_and_loss(objective: Objective, x: Tensor, y: Tensor, at_once: int | None) -> tuple[Tensor, Tensor]:
    model = lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    generators = [torch.Generator().manual_seed(1)]
    (loss,) = descend(model, [(x, y)], objective, optimizer, at_once=at_once, generators=generators)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]), loss


@pytest.mark.parametrize("at_once", [32, 24, 1])
@pytest.mark.parametrize("objective", [standard_loss, PGDAT(steps=2, random_start=True), Trades(steps=2)])
def test_the_gradient_is_that_of_the_whole_batch(objective: Objective, at_once: int, digits: data.Split) -> None:
    split = digits.subset(64)
    whole, loss = gradient_and_loss(objective, split.floats(), split.labels, None)
    parts, loss_of_parts = gradient_and_loss(objective, split.floats(), split.labels, at_once)
    assert float((parts - whole).norm() / whole.norm()) < 1e-4
    torch.testing.assert_close(loss_of_parts, loss)


def largest_batch(model: nn.Module) -> list[int]:
    """The sizes of the batches that the model sees; grows as it sees more."""
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    return sizes


def test_a_recorded_training_never_sees_more_than_a_part(digits: data.Split) -> None:
    traces = []
    for accumulate in (1, 4):
        model = lenet()
        optimizer, sizes = torch.optim.SGD(model.parameters(), lr=0.05), largest_batch(model)
        recorder = Recorder(model, optimizer, slopes_per_epoch=3, steps_per_epoch=5)
        options: dict[str, Any] = {"epochs": 2, "batch_size": 64, "recorder": recorder, "accumulate": accumulate}
        train(model, digits, standard_loss, optimizer, constant(0.05), **options)
        assert max(sizes) == 64 // accumulate
        assert recorder.problems == ()
        traces.append(recorder.trace)
    assert len(traces[0].slopes) == 6
    np.testing.assert_allclose(traces[1].slopes, traces[0].slopes, rtol=1e-3)
    np.testing.assert_allclose(traces[1].squared_gradient_distances, traces[0].squared_gradient_distances, rtol=1e-3)


def test_the_recorders_closure_keeps_no_activations(digits: data.Split) -> None:
    """What layers save for the backward pass is computed again there, one part after the other."""
    kept = [0, 0]

    def count(number: int, tensor: Tensor) -> Tensor:
        kept[number] += tensor.nbytes
        return tensor

    model, x, y = lenet(), digits.floats()[:64], digits.labels[:64]
    values = []
    for number, at_once in enumerate((None, 8)):
        losses = losses_of_parts(standard_loss, model, x, y, None, at_once=at_once)
        with torch.autograd.graph.saved_tensors_hooks(partial(count, number), lambda tensor: tensor):
            values.append(added(losses, x)())
    torch.testing.assert_close(values[1], values[0])
    assert kept[1] < kept[0] / 100


def test_a_stopped_training_ends_bit_identical(train_lenet: Train, tmp_path: Path) -> None:
    options: dict[str, Any] = {"accumulate": 4, "objective": PGDAT(steps=2, random_start=True)}
    whole, _ = train_lenet(folder=tmp_path / "whole", **options)
    with pytest.raises(InterruptedRunError):
        train_lenet(folder=tmp_path / "stopped", on_progress=StopAfter(7, signal.SIGTERM), **options)
    resumed, _ = train_lenet(folder=tmp_path / "stopped", **options)
    assert same_weights(whole, resumed)
    with pytest.raises(InputError, match="accumulate"):
        train_lenet(folder=tmp_path / "stopped", epochs=4, **options | {"accumulate": 2})


def test_batch_norm_sees_parts(digits: data.Split) -> None:
    """A last part of one image is too small for it, although the last batch is not."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"epochs": 1, "batch_size": 64}
    train(model, digits.subset(69), standard_loss, optimizer, constant(0.1), **options)
    with pytest.raises(InputError, match="batch size"):
        train(model, digits.subset(69), standard_loss, optimizer, constant(0.1), accumulate=16, **options)


@pytest.mark.parametrize(
    ("accumulate", "cure"), [(3, "such as 4"), (65, "divisor"), (0, "accumulate"), (2.0, "accumulate")]
)
def test_parts_that_do_not_fit_are_refused(train_lenet: Train, accumulate: Any, cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        train_lenet(accumulate=accumulate)


def test_what_cannot_be_divided_is_refused(train_lenet: Train, digits: data.Split) -> None:
    with pytest.raises(InputError, match="pseudo-labelled"):
        train_lenet(accumulate=2, data=Mixture(digits, digits, epoch_samples=128))
    with pytest.raises(InputError, match="pseudo-labelled"):
        train_lenet(accumulate=2, objective=RST(steps=1))
    with pytest.raises(InputError, match="processes"):
        train_lenet(accumulate=2, ranks=Ranks(0, 2))


def test_weight_perturbation_of_a_part(digits: data.Split) -> None:
    """AWP perturbs the weights for each part, so its gradient is another one, as it is with several processes."""
    split = digits.subset(32)
    whole, _ = gradient_and_loss(AWP(steps=1), split.floats(), split.labels, None)
    parts, _ = gradient_and_loss(AWP(steps=1), split.floats(), split.labels, 16)
    assert 0 < float((parts - whole).norm() / whole.norm()) < 0.2


@pytest.mark.parametrize(
    ("changes", "arms"),
    [
        (["training.accumulate=3"], ()),
        (["training.accumulate=2"], ("batch:15",)),
        (["training.accumulate=2", "data.unlabelled='images.npz'"], ()),
    ],
)
def test_an_experiment_that_cannot_be_divided_leaves_no_folder(
    tiny: Path, tmp_path: Path, changes: list[str], arms: tuple[str, ...]
) -> None:
    with pytest.raises(InputError, match=r"training\.accumulate|pseudo-labelled"):
        Run(tmp_path / "run", load(str(tiny), overrides=changes), console=Console(quiet=True), arms=arms)
    assert not (tmp_path / "run").exists()
