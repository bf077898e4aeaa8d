"""A small real task: LeNet-5 on a part of the embedded digits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from excite import data, models
from excite.objectives import standard_loss
from excite.schedules import Schedule, constant
from excite.training import TrainingHistory, train

Train = Callable[..., tuple[nn.Module, TrainingHistory]]


@pytest.fixture(scope="session")
def digits() -> data.Split:
    return data.load("mnist-sample").train.subset(320)


@pytest.fixture
def train_lenet(digits: data.Split) -> Train:
    """Train a LeNet-5, always from the same weights; keywords go to `train`."""

    def run(
        *,
        rate: float = 0.1,
        momentum: float = 0.9,
        schedule: Schedule | None = None,
        folder: Path | None = None,
        **options: Any,
    ) -> tuple[nn.Module, TrainingHistory]:
        torch.manual_seed(0)
        model = models.create("lenet5", input_shape=(1, 28, 28))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        options = {"epochs": 3, "batch_size": 64} | options
        objective = options.pop("objective", standard_loss)
        split = options.pop("data", digits)
        return model, train(model, split, objective, optimizer, schedule or constant(rate), folder=folder, **options)

    return run
