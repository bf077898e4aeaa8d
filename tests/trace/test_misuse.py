"""Gradients changed between the backward pass and the step are noticed, and so are unsuitable optimizers."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.trace import Recorder
from excite.trace.misuse import WARNINGS, check_optimizer, diagnose
from excite.trace.slopes import BackwardPasses, at_parameters

EXPECTED = torch.tensor([3.0, 4.0, 0.0])


@pytest.mark.parametrize(
    ("used", "passes", "early", "kind"),
    [
        (EXPECTED * 1.001, 1, False, None),
        (EXPECTED * 0.01, 1, False, "scaled"),
        (EXPECTED * 100, 3, True, "scaled"),
        (torch.tensor([3.0, 0.0, 4.0]), 2, False, "accumulated"),
        (torch.tensor([3.0, 0.0, 4.0]), 2, True, "early"),
        (torch.tensor([0.0, 0.0, 5.0]), 1, False, "other"),
        (torch.zeros(3), 1, False, "other"),
        (torch.tensor([0.0, torch.nan, 5.0]), 1, False, None),
        (torch.tensor([0.0, torch.inf, 5.0]), 1, False, None),
    ],
)
def test_the_kind_of_the_warning(used: Tensor, passes: int, early: bool, kind: str | None) -> None:
    warning = diagnose(used, EXPECTED, passes=passes, early=early)
    assert (warning[0] if warning else None) == kind
    if warning:
        assert WARNINGS[warning[0]].format(**warning[1])


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
def test_a_gradient_is_changed_if_it_is_not_the_result_of_one_backward_pass(
    change: Callable[[nn.Module], object], changed: bool
) -> None:
    model = nn.Linear(3, 2)
    passes = BackwardPasses(list(model.parameters()))
    model(torch.ones(2, 3)).sum().backward()
    change(model)
    assert passes.gradients_changed == changed
    passes.close()
    model(torch.ones(2, 3)).sum().backward()
    assert passes.count <= 2  # it no longer counts


@pytest.mark.parametrize("by_closure", [False, True])
def test_gradients_that_the_step_overwrites_are_read_before_it(by_closure: bool) -> None:
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


def test_watching_keeps_no_parameter_alive() -> None:
    model = nn.Linear(3, 2)
    passes = BackwardPasses(list(model.parameters()))
    model(torch.ones(2, 3)).sum().backward()
    assert passes.count == 1
    watched = weakref.ref(model.weight)
    del model, passes
    gc.collect()
    assert watched() is None


def test_parameters_are_restored_even_after_an_error() -> None:
    model = nn.Linear(3, 2)
    parameters = list(model.parameters())
    places = [parameter.data_ptr() for parameter in parameters]
    before = [parameter.detach().clone() for parameter in parameters]
    zeros = [torch.zeros_like(parameter) for parameter in parameters]

    def stumble() -> None:
        with at_parameters(parameters, zeros):
            assert not any(parameter.any() for parameter in parameters)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        stumble()
    assert all(torch.equal(parameter, value) for parameter, value in zip(parameters, before, strict=True))
    assert [parameter.data_ptr() for parameter in parameters] == places


def test_an_optimizer_of_some_of_the_parameters_is_fine_and_of_none_is_not() -> None:
    model = nn.Linear(2, 2)
    check_optimizer(torch.optim.SGD([model.bias], lr=0.1), list(model.parameters()), watches_steps=True)
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"model\.parameters"):
        check_optimizer(stranger, list(model.parameters()), watches_steps=False)
