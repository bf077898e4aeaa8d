"""What the loop reaches on complete data."""

from collections.abc import Callable

import pytest
import torch

from excite import data, models
from excite.evaluation import evaluate
from excite.objectives import standard_loss
from excite.schedules import constant
from excite.training import train


@pytest.mark.slow
@pytest.mark.full_data
def test_lenet5_learns_mnist(full_dataset: Callable[[str], data.Dataset]) -> None:
    mnist = full_dataset("mnist")
    torch.manual_seed(25)
    model = models.create("lenet5", input_shape=mnist.input_shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, mnist.train, standard_loss, optimizer, constant(0.1), epochs=10, batch_size=64)
    evaluation = evaluate(model.eval(), mnist.test.floats(), mnist.test.labels, {})
    print(evaluation)
    assert evaluation.clean.value >= 0.985
