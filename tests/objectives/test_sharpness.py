"""SAM equals its update written out, and on a quadratic its known answer."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from excite.errors import InputError
from excite.objectives import SAM, frozen, standard_loss
from tests.objectives.test_every_objective import dropout_network, examples

RATE = 0.05


def written_out(model: nn.Module, rho: float, index: int) -> None:
    """One SGD step of SAM, as its paper has it: climb, take the gradient there, go back, descend."""
    x, y = examples(index)
    parameters = list(model.parameters())
    statistics = copy.deepcopy(dict(model.named_buffers()))
    gradients = torch.autograd.grad(cross_entropy(model(x), y), parameters)
    length = math.sqrt(sum(float((g**2).sum()) for g in gradients))
    with torch.no_grad():
        for name, value in model.named_buffers():
            value.copy_(statistics[name])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.add_(gradient, alpha=rho / length)
    above = torch.autograd.grad(cross_entropy(model(x), y), parameters)
    with torch.no_grad():
        for parameter, gradient, there in zip(parameters, gradients, above, strict=True):
            parameter.sub_(gradient, alpha=rho / length).sub_(there, alpha=RATE)


def test_training_with_sam_equals_its_update_written_out() -> None:
    model = dropout_network()
    model[4].p = 0.0  # type: ignore[assignment]
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for index in range(5):
        optimizer.zero_grad()
        SAM(rho=0.3)(model, *examples(index)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        written_out(twin, 0.3, index)
    for (name, value), expected in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12, msg=name)


def test_the_weights_move_by_rho() -> None:
    model = dropout_network()
    by = SAM(rho=0.7).perturb(model, *examples(0))
    assert math.sqrt(sum(float((step**2).sum()) for step in by.values())) == pytest.approx(0.7)
    assert set(by) == {name for name, _ in model.named_parameters()}


def test_without_a_radius_it_is_the_standard_loss() -> None:
    model = dropout_network().eval()
    assert torch.equal(SAM(rho=0.0)(model, *examples(0)), standard_loss(model, *examples(0)))


def test_frozen_and_unused_weights_do_not_move() -> None:
    model = dropout_network()
    model.register_parameter("unused", nn.Parameter(torch.zeros(2)))
    first = model.get_parameter("0.weight")
    first.requires_grad_(False)
    closure = frozen(SAM(), model, *examples(0))
    closure().backward()  # type: ignore[no-untyped-call]
    assert first.grad is None
    assert not any("unused" in name or name == "0.weight" for name in SAM().perturb(model, *examples(0)))


@pytest.mark.parametrize("rho", [-0.1, math.inf, math.nan])
def test_a_radius_that_cannot_be_is_refused(rho: float) -> None:
    with pytest.raises(InputError, match="rho"):
        SAM(rho)
