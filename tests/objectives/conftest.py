"""A small network with everything an attack could disturb, in float64 so that twins agree to the last digits."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

CLASSES = 4


@pytest.fixture
def new_network() -> Callable[[], nn.Sequential]:
    """The same weights and the same batch-norm statistics (not the trivial ones) every time, in train mode."""

    def make() -> nn.Sequential:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Conv2d(3, 6, 3, bias=False),
                nn.BatchNorm2d(6),
                nn.ReLU(),
                nn.Conv2d(6, 6, 3),
                nn.BatchNorm2d(6),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(6 * 4, CLASSES),
            ).double()
            for _ in range(5):
                model(torch.rand(32, 3, 6, 6, dtype=torch.float64))
        return model

    return make


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(10, 3, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (10,), generator=generator)


@pytest.fixture
def assert_same_step() -> Callable[[nn.Module, Tensor, nn.Module, Tensor], None]:
    """Two losses of two models are equal, and so are the gradients and buffers they leave."""

    def check(model: nn.Module, loss: Tensor, twin: nn.Module, expected: Tensor) -> None:
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
        loss.backward()  # type: ignore[no-untyped-call]
        expected.backward()  # type: ignore[no-untyped-call]
        for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
            assert mine.grad is not None, name
            assert theirs.grad is not None, name
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-10)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffer, twin.get_buffer(name), msg=name)

    return check
