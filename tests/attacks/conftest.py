"""Small networks that every attack test uses."""

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture
def convnet() -> nn.Sequential:
    """Untrained, with batch-norm statistics that are not the trivial ones."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 16, 10),
        )
        for _ in range(5):
            model(torch.rand(32, 3, 8, 8))
    return model.eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def labels(convnet: nn.Module, images: Tensor) -> Tensor:
    """What the network itself answers, so that every example begins correct."""
    with torch.no_grad():
        answers: Tensor = convnet(images).argmax(1)
    return answers
