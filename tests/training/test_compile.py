"""torch.compile in training steps: the same training to rounding, resumed bit-identically, and recorded."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from excite import data
from excite.errors import InputError, InterruptedRunError
from excite.objectives import AWP, PGDAT, SAM, Objective, standard_loss
from excite.schedules import constant
from excite.trace import Recorder
from excite.training import train
from excite.training.distributed import Ranks
from tests.training.stopped import StopAfter, same_weights

Train = Callable[..., tuple[nn.Module, object]]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A compiler that traces forward and backward graphs, runs them as they are, and counts."""
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    return compiled


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 10)]
        return nn.Sequential(*layers)


def recorded(split: data.Split, *, compile: bool, **options: Any) -> tuple[nn.Module, Recorder]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    recorder = Recorder(
        model, optimizer, probe=split.probe(32, 16), slopes_per_epoch=2, steps_per_epoch=5, curvature_every=1
    )
    torch.manual_seed(1)
    usual: dict[str, Any] = {"objective": standard_loss, "epochs": 2, "batch_size": 64, "recorder": recorder} | options
    train(model, split, optimizer=optimizer, schedule=constant(0.05), compile=compile, **usual)
    return model, recorder


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate": 2}, {"objective": PGDAT(steps=2, random_start=True)}],
    ids=["standard", "accumulate", "pgd_at"],
)
def test_steps_are_compiled_and_recorded(graphs: list[int], digits: data.Split, options: dict[str, Any]) -> None:
    plain, expected = recorded(digits, compile=False, **options)
    assert not graphs
    model, recorder = recorded(digits, compile=True, **options)
    assert graphs
    assert "forward" not in vars(model)
    assert recorder.problems == ()
    np.testing.assert_allclose(recorder.trace.slopes, expected.trace.slopes, rtol=1e-3)
    np.testing.assert_allclose(recorder.trace.curvatures[0], expected.trace.curvatures[0], rtol=1e-2)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("graphs")
def test_a_stopped_training_ends_bit_identical(digits: data.Split, tmp_path: Path) -> None:
    whole, _ = recorded(digits, compile=True, folder=tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        recorded(digits, compile=True, folder=tmp_path / "stopped", on_progress=StopAfter(7, signal.SIGTERM))
    resumed, _ = recorded(digits, compile=True, folder=tmp_path / "stopped")
    assert same_weights(whole, resumed)
    with pytest.raises(InputError, match="compile"):
        recorded(digits, compile=False, folder=tmp_path / "stopped", epochs=4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_default_compiler_resumes_bit_identically(digits: data.Split, tmp_path: Path) -> None:
    """Needs a C++ compiler on the machine."""
    torch._dynamo.reset()
    whole, recorder = recorded(digits, compile=True, folder=tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        recorded(digits, compile=True, folder=tmp_path / "stopped", on_progress=StopAfter(7, signal.SIGTERM))
    resumed, _ = recorded(digits, compile=True, folder=tmp_path / "stopped")
    assert same_weights(whole, resumed)
    assert recorder.problems == ()


@pytest.mark.parametrize("objective", [SAM(), AWP(steps=1)])
def test_weights_that_move_are_refused(train_lenet: Train, objective: Objective) -> None:
    with pytest.raises(InputError, match="compile"):
        train_lenet(compile=True, objective=objective)


def test_several_processes_are_refused(train_lenet: Train) -> None:
    with pytest.raises(InputError, match="compile"):
        train_lenet(compile=True, ranks=Ranks(0, 2))


def test_a_compiler_that_fails_is_an_error_with_the_cure(train_lenet: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise OSError("no compiler")

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    with pytest.raises(InputError, match="compile"):
        train_lenet(compile=True)
