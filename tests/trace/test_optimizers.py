"""Optimizers that can be watched, and those for which 1/L is no rate."""

import pytest
import torch
from torch import nn

from excite.errors import InputError
from excite.trace.their_loop import caveat, check_optimizer


def test_sgd_has_no_caveat_and_others_are_named() -> None:
    model = nn.Linear(2, 2)
    assert caveat(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)) is None
    for kind in (torch.optim.AdamW, torch.optim.Adadelta, torch.optim.RMSprop):
        assert f"no rate for {kind.__name__}" in str(caveat(kind(model.parameters(), lr=0.1)))


def test_an_optimizer_of_some_of_the_parameters_is_fine_and_of_none_is_not() -> None:
    model = nn.Linear(2, 2)
    check_optimizer(torch.optim.SGD([model.bias], lr=0.1), list(model.parameters()), watches_steps=True)
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(InputError, match="holds none of this model's parameters"):
        check_optimizer(stranger, list(model.parameters()), watches_steps=False)
