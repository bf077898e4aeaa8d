"""PGD adversarial training against its slow twin, and its promises on any linear network."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.attacks.geometry import distance, random_point
from excite.errors import InputError
from excite.objectives import PGDAT


def slow_pgd_at_loss(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, *, eps: float, step: float, steps: int
) -> Tensor:
    """One example at a time: climb in eval mode, remember the worst point, then one loss in train mode."""
    model.eval()
    worst_points = []
    for image, label, point in zip(x, y, start, strict=True):
        worst, worst_loss = point, -torch.inf
        for taken in range(steps + 1):
            point = point.detach().requires_grad_()  # noqa: PLW2901
            loss = cross_entropy(model(point[None]), label[None])
            if loss > worst_loss:
                worst, worst_loss = point.detach(), loss.item()
            if taken < steps:
                (gradient,) = torch.autograd.grad(loss, point)
                moved = point.detach() + step * gradient.sign()
                point = torch.minimum(torch.maximum(moved, image - eps), image + eps).clamp(0, 1)  # noqa: PLW2901
        worst_points.append(worst)
    model.train()
    return cross_entropy(model(torch.stack(worst_points)), y)


@pytest.mark.parametrize("random_start", [False, True])
@pytest.mark.parametrize("step", [0.007, 0.05])
def test_equals_its_slow_twin(
    *,
    new_network: Callable[[], nn.Module],
    batch: tuple[Tensor, Tensor],
    assert_same_step: Any,
    random_start: bool,
    step: float,
) -> None:
    """A step longer than the ball makes the path jump about, so that the worst point is often not the last one."""
    model, twin = new_network(), new_network()
    start = batch[0]
    if random_start:
        start = random_point(batch[0], eps=8 / 255, norm="linf", generator=torch.Generator().manual_seed(3))
    loss = PGDAT(step=step, random_start=random_start)(model, *batch, torch.Generator().manual_seed(3))
    assert_same_step(model, loss, twin, slow_pgd_at_loss(twin, *batch, start, eps=8 / 255, step=step, steps=10))
    assert loss > cross_entropy(new_network()(batch[0]), batch[1])


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    eps=st.floats(0, 1),
    ratio=st.floats(0, 4),
    steps=st.integers(0, 4),
    random_start=st.booleans(),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_stays_in_the_ball_and_is_no_better_than_the_start(
    *, seed: int, eps: float, ratio: float, steps: int, random_start: bool, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.rand(5, 1, 3, 3, generator=generator), torch.randint(0, 3, (5,), generator=generator)
    linear = nn.Linear(9, 3)
    model = nn.Sequential(nn.Flatten(), linear)
    with torch.no_grad():
        linear.weight.copy_(scale * torch.randn(3, 9, generator=generator))
    objective = PGDAT(eps=eps, step=eps * ratio, steps=steps, random_start=random_start)
    x_adv = objective.perturb(model, x, y, torch.Generator().manual_seed(seed))
    assert distance(x_adv, x, norm="linf").max() <= eps + 1e-7
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    start = random_point(x, eps=eps, norm="linf", generator=torch.Generator().manual_seed(seed)) if random_start else x
    before = cross_entropy(model(start), y, reduction="none")
    after = cross_entropy(model(x_adv), y, reduction="none")
    assert (after >= before * (1 - 1e-5) - 1e-6).all()


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="eps"):
        PGDAT(eps=-0.1)
