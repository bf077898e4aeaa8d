"""The recorder reads the gradients that a step uses, and restores what it replaces."""

import pytest
import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.trace import Recorder
from excite.trace.recorder import held_by
from excite.trace.slopes import replaced


@pytest.mark.parametrize("by_closure", [False, True])
def test_copies_gradients_that_the_step_overwrites(by_closure: bool) -> None:
    """torch's foreach SGD with Nesterov momentum; its own default on CUDA."""
    norms = {}
    for foreach in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=foreach)
        recorder = Recorder(model, optimizer)

        def loss() -> Tensor:
            return model(torch.eye(3)).square().sum()  # type: ignore[no-any-return]  # noqa: B023

        def backward() -> Tensor:
            optimizer.zero_grad()  # noqa: B023
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        for _ in range(3):
            for _ in range(2):
                if by_closure:
                    optimizer.step(backward)
                else:
                    backward()
                    optimizer.step()
                recorder.after_step(loss)
            recorder.record()
        assert recorder.problems == ()
        norms[foreach] = recorder.trace.gradient_norms
    assert norms[True] == pytest.approx(norms[False], rel=1e-5)


def test_reads_unscaled_gradients_of_fused_optimizers() -> None:
    """A GradScaler lets a fused optimizer divide the gradients by its scale during the step."""
    norms = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu")
        recorder = Recorder(model, optimizer, slopes_per_epoch=0)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.eye(3)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        recorder.record()
        norms.append(recorder.trace.gradient_norms)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_restores_parameters_after_an_error() -> None:
    model = nn.Linear(3, 2)
    parameters = list(model.parameters())
    places = [parameter.data_ptr() for parameter in parameters]
    before = [parameter.detach().clone() for parameter in parameters]
    zeros = [torch.zeros_like(parameter) for parameter in parameters]

    def stumble() -> None:
        with replaced(parameters, "data", zeros):
            assert not any(parameter.any() for parameter in parameters)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        stumble()
    assert all(torch.equal(parameter, value) for parameter, value in zip(parameters, before, strict=True))
    assert [parameter.data_ptr() for parameter in parameters] == places


def test_needs_an_optimizer_of_at_least_some_parameters() -> None:
    model = nn.Linear(2, 2)
    assert held_by(torch.optim.SGD([model.bias], lr=0.1), list(model.parameters())) == [model.bias]
    with pytest.raises(InputError, match=r"model\.parameters"):
        held_by(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), list(model.parameters()))
