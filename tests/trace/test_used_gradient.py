"""What was done to a gradient between the backward pass and the step is noticed, and named."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from excite.trace.their_loop import BackwardPasses, objection, standing_at

OWN = torch.tensor([3.0, 4.0, 0.0])


@pytest.mark.parametrize(
    ("used", "passes", "early", "kind"),
    [
        (OWN * 1.001, 1, False, None),
        (OWN * 0.01, 1, False, "scaled"),
        (OWN * 100, 3, True, "scaled"),
        (torch.tensor([3.0, 0.0, 4.0]), 2, False, "accumulated"),
        (torch.tensor([3.0, 0.0, 4.0]), 2, True, "early"),
        (torch.tensor([0.0, 0.0, 5.0]), 1, False, "other"),
        (torch.zeros(3), 1, False, "other"),
    ],
)
def test_the_kind_of_the_objection(used: Tensor, passes: int, early: bool, kind: str | None) -> None:
    found = objection(used, OWN, passes=passes, early=early)
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        (lambda _: None, False),
        (lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e9), False),
        (lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3), True),
        (lambda model: model(torch.ones(2, 3)).sum().backward(), True),
        (lambda model: model.zero_grad(), True),
    ],
)
def test_a_gradient_is_touched_if_it_is_not_what_one_backward_pass_left(
    change: Callable[[nn.Module], object], touched: bool
) -> None:
    model = nn.Linear(3, 2)
    passes = BackwardPasses(list(model.parameters()))
    model(torch.ones(2, 3)).sum().backward()
    change(model)
    assert passes.touched == touched
    passes.close()
    model(torch.ones(2, 3)).sum().backward()
    assert passes.times <= 2  # it no longer looks


def test_watching_keeps_no_parameter_alive() -> None:
    model = nn.Linear(3, 2)
    passes = BackwardPasses(list(model.parameters()))
    model(torch.ones(2, 3)).sum().backward()
    assert passes.times == 1
    watched = weakref.ref(model.weight)
    del model, passes
    gc.collect()
    assert watched() is None


def test_standing_elsewhere_ends_where_it_began_even_after_an_error() -> None:
    model = nn.Linear(3, 2)
    parameters = list(model.parameters())
    places = [parameter.data_ptr() for parameter in parameters]
    before = [parameter.detach().clone() for parameter in parameters]
    zeros = [torch.zeros_like(parameter) for parameter in parameters]

    def stumble() -> None:
        with standing_at(parameters, zeros):
            assert not any(parameter.any() for parameter in parameters)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        stumble()
    assert all(torch.equal(parameter, value) for parameter, value in zip(parameters, before, strict=True))
    assert [parameter.data_ptr() for parameter in parameters] == places
