"""The recorder notices gradients that were changed between the backward pass and the step."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.trace import Recorder
from excite.trace.recorder import held_by
from excite.trace.slopes import BackwardPasses, other_gradient, replaced

EXPECTED = torch.tensor([3.0, 4.0, 0.0])


@pytest.mark.parametrize(
    ("used", "cosine"),
    [
        (EXPECTED * 1.001, None),
        (EXPECTED * 0.01, "1."),
        (EXPECTED * 100, "1."),
        (torch.tensor([3.0, 0.0, 4.0]), "0.36."),
        (torch.zeros(3), "0."),
        (torch.tensor([0.0, torch.nan, 5.0]), None),
        (torch.tensor([0.0, torch.inf, 5.0]), None),
    ],
)
def test_warns_about_another_gradient(used: Tensor, cosine: str | None) -> None:
    warning = other_gradient(used, EXPECTED)
    assert (warning is None) == (cosine is None)
    assert warning is None or f"cosine is {cosine}" in warning


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (lambda _: None, False),
        (lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e9), False),
        (lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3), True),
        (lambda model: model(torch.ones(2, 3)).sum().backward(), True),
        (lambda model: model.zero_grad(), True),
    ],
)
def test_notices_gradients_that_do_not_come_from_one_backward_pass(
    change: Callable[[nn.Module], object], changed: bool
) -> None:
    model = nn.Linear(3, 2)
    passes = BackwardPasses(list(model.parameters()))
    model(torch.ones(2, 3)).sum().backward()
    change(model)
    assert passes.gradients_changed == changed
    passes.close()
    model(torch.ones(2, 3)).sum().backward()
    assert max(passes.counts.values()) <= 2  # it no longer counts


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


def test_hooks_do_not_leak_parameters() -> None:
    model = nn.Linear(3, 2)
    passes = BackwardPasses(list(model.parameters()))
    model(torch.ones(2, 3)).sum().backward()
    assert max(passes.counts.values()) == 1
    watched = weakref.ref(model.weight)
    del model, passes
    gc.collect()
    assert watched() is None


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
