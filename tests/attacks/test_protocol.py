"""Nothing leaves the ball or the box, and what is inside stays where it is."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from excite.attacks import create
from excite.attacks.geometry import Norm, ascent, distance, project, random_point
from excite.attacks.protocol import right_answers
from excite.errors import InputError

NORMS = get_args(Norm)


@pytest.mark.parametrize("norm", NORMS)
def test_points_inside_stay(norm: Norm) -> None:
    x = torch.full((3, 1, 2, 2), 0.5)
    inside = x + torch.tensor([0.01, -0.02, 0.0]).reshape(3, 1, 1, 1)
    torch.testing.assert_close(project(inside, x, eps=0.1, norm=norm), inside, rtol=0, atol=1e-7)


def test_known_projections() -> None:
    x = torch.tensor([[0.5, 0.5]])
    far = torch.tensor([[0.5 + 0.3, 0.5 + 0.4]])
    torch.testing.assert_close(project(far, x, eps=0.1, norm="linf"), torch.tensor([[0.6, 0.6]]))
    torch.testing.assert_close(project(far, x, eps=0.1, norm="l2"), torch.tensor([[0.56, 0.58]]))
    torch.testing.assert_close(project(far + 5, x, eps=9.0, norm="linf"), torch.tensor([[1.0, 1.0]]))


def test_ascent_directions() -> None:
    gradient = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    torch.testing.assert_close(ascent(gradient, norm="linf"), torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    torch.testing.assert_close(ascent(gradient, norm="l2"), torch.tensor([[0.6, -0.8], [0.0, 0.0]]))


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    eps=st.one_of(st.sampled_from([0.0, 1 / 255, 8 / 255, 0.3, 1.0]), st.floats(0, 4)),
    norm=st.sampled_from(NORMS),
    reach=st.sampled_from([0.0, 1e-6, 0.01, 1.0, 1e3]),
    edges=st.booleans(),
)
def test_projection_never_leaves_ball_or_box(seed: int, eps: float, norm: Norm, reach: float, edges: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(4, 3, 5, 5, generator=generator)
    x = x.round() if edges else x
    x_adv = project(x + reach * torch.randn(x.shape, generator=generator), x, eps=eps, norm=norm)
    start = random_point(x, eps=eps, norm=norm, generator=generator)
    for point in (x_adv, start):
        assert distance(point, x, norm=norm).max() <= eps + 1e-7
        assert point.min() >= 0
        assert point.max() <= 1


@pytest.mark.parametrize("norm", NORMS)
def test_random_points_fill_the_ball(norm: Norm) -> None:
    x = torch.full((4000, 3), 0.5)
    point = random_point(x, eps=0.4, norm=norm, generator=torch.Generator().manual_seed(0))
    # P(distance ≤ ε/2) = 2^-dimension for a uniform draw, in either norm
    share = float((distance(point, x, norm=norm) <= 0.2).double().mean())
    assert abs(share - 0.125) < 4 * (0.125 * 0.875 / 4000) ** 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_inside_the_ball(dtype: torch.dtype) -> None:
    x = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    for eps in (0.1, 8 / 255):
        moved = project(
            x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype), x, eps=eps, norm="linf"
        )
        assert eps / 2 < float(distance(moved, x, norm="linf").max()) <= eps


class AtLeastOneImage(nn.Module):
    """As `x.view(len(x), -1)` does, it does not take an empty batch."""

    def forward(self, x: Tensor) -> Tensor:
        assert len(x) > 0
        return torch.stack([x.flatten(1).mean(1), torch.full((len(x),), 0.5)], 1)


def test_a_cascade_ends_where_nobody_stands() -> None:
    model, x = AtLeastOneImage(), torch.full((4, 1, 8, 8), 0.55)
    y = torch.zeros(4, dtype=torch.long)
    attack = create("autoattack", eps=0.1, members=("apgd-ce", "apgd-dlr", "square"))
    x_adv = attack(model, x, y)
    assert not bool(right_answers(model(x_adv), y).any())
    with pytest.raises(InputError, match="labels"):
        attack(model, x, y[:, None])
