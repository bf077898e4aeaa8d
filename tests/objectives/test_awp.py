"""AWP against the way it is usually written: a proxy climbs, the weights are moved, and put back before the step."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from excite.errors import InputError
from excite.objectives import AWP, PGDAT, Trades


def loss_on(on: str, model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    if on == "pgd_at":
        return cross_entropy(model(x_adv), y)
    logits = model(x)
    natural, adversarial = log_softmax(logits, 1), log_softmax(model(x_adv), 1)
    return cross_entropy(logits, y) + 6.0 * (natural.exp() * (natural - adversarial)).sum(1).mean()


@pytest.mark.parametrize("on", ["trades", "pgd_at"])
@pytest.mark.parametrize("gamma", [0.005, 0.05])
def test_equals_moving_the_weights_there_and_back(
    new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], on: Any, gamma: float
) -> None:
    model, twin = new_network(), new_network()
    inner = Trades() if on == "trades" else PGDAT()
    x_adv = inner.perturb(twin, *batch, torch.Generator().manual_seed(3))
    proxy = copy.deepcopy(twin)
    loss_on(on, proxy, batch[0], x_adv, batch[1]).backward()  # type: ignore[no-untyped-call]
    before = copy.deepcopy(twin.state_dict())
    with torch.no_grad():
        for weight, climber in zip(twin.parameters(), proxy.parameters(), strict=True):
            if weight.dim() > 1 and climber.grad is not None:
                weight.add_(climber.grad, alpha=float(gamma * weight.norm() / climber.grad.norm()))
    expected = loss_on(on, twin, batch[0], x_adv, batch[1])
    expected.backward()  # type: ignore[no-untyped-call]

    loss = AWP(on=on, gamma=gamma)(model, *batch, torch.Generator().manual_seed(3))
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, expected)
    assert loss > loss_on(on, new_network(), batch[0], x_adv, batch[1])
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-7, atol=1e-10, msg=name)
        assert torch.equal(mine, before[name]), name
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, twin.get_buffer(name), msg=name)


def test_without_a_step_up_it_is_the_objective_below(
    new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor]
) -> None:
    torch.testing.assert_close(
        AWP(on="pgd_at", gamma=0.0)(new_network(), *batch), PGDAT()(new_network(), *batch), rtol=1e-12, atol=0
    )


def test_where_only_biases_are_trained_no_weight_is_moved(
    new_network: Callable[[], nn.Module], batch: tuple[Tensor, Tensor]
) -> None:
    model = new_network()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.dim() < 2)
    torch.testing.assert_close(AWP(on="pgd_at")(model, *batch), PGDAT()(new_network(), *batch), rtol=1e-12, atol=0)


def test_dropout_masks_are_the_same_on_the_way_up_and_down() -> None:
    """Half the inputs are dropped; without the same masks the weights would be moved along other inputs."""
    torch.manual_seed(0)
    linear = nn.Linear(9, 3)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), linear)
    x, y = torch.rand(1, 1, 3, 3), torch.tensor([0])
    objective = AWP(on="pgd_at")
    found = objective.perturb(model, x, y)
    objective.loss_at(model, x, found, y).backward()  # type: ignore[no-untyped-call]
    assert linear.weight.grad is not None
    dropped = linear.weight.grad[0] == 0
    assert 0 < dropped.sum() < 9
    assert torch.equal(found.weights["2.weight"][0] == 0, dropped)


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({"gamma": -1.0}, "gamma"),
        ({"on": "mart"}, "trades"),
        ({"on": "awp"}, "trades"),
        ({"on": "n_fgsm"}, "trades"),
        ({"on": "pgd_at", "beta": 3.0}, "beta"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], keyword: str) -> None:
    with pytest.raises(InputError, match=keyword):
        AWP(**options)
