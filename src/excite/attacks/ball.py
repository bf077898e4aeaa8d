"""Bring a perturbed image back into the ε-ball around its origin and into [0, 1], rounding included."""

from typing import Literal, get_args

import torch
from torch import Tensor

from excite.errors import unknown

Norm = Literal["linf", "l2"]
TINY = 1e-12


def check_norm(norm: str) -> None:
    if norm not in get_args(Norm):
        raise unknown("norm", norm, get_args(Norm))


def project(x_adv: Tensor, x: Tensor, *, eps: float, norm: Norm) -> Tensor:
    """The point of the ball around `x`, cut with the box [0, 1], that `x_adv` is moved to."""
    if norm == "linf":
        return torch.clamp(x_adv, x - eps, x + eps).clamp_(0.0, 1.0)
    # Rounded to nearest, x + δ can lie a little outside; a last step towards x, where needed, keeps |δ| from growing.
    exact = _exact(x)
    delta = _exact(x_adv) - exact
    delta *= (eps / length(delta).clamp_min(TINY)).clamp_max(1.0)
    inside = (exact + delta).to(x.dtype)
    too_far = (_exact(inside) - exact).abs() > delta.abs()
    return torch.where(too_far, torch.nextafter(inside, x), inside).clamp_(0.0, 1.0)


def ascent(gradient: Tensor, *, norm: Norm) -> Tensor:
    """The direction of length one, in `norm`, along which a loss with this gradient grows fastest."""
    if norm == "linf":
        return gradient.sign()
    return gradient / length(gradient).clamp_min(TINY)


def random_point(x: Tensor, *, eps: float, norm: Norm, generator: torch.Generator | None) -> Tensor:
    """A point drawn uniformly from the ball around `x`, then projected into the box."""
    device = x.device if generator is None else generator.device
    if norm == "linf":
        delta = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=device) * 2 - 1
    else:
        direction = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device)
        radius = torch.rand(x.shape[0], generator=generator, dtype=x.dtype, device=device)
        radius = radius.pow(1 / x[0].numel()).reshape(-1, *[1] * (x.dim() - 1))
        delta = ascent(direction, norm=norm) * radius
    return project(x + eps * delta.to(x.device), x, eps=eps, norm=norm)


def distance(x_adv: Tensor, x: Tensor, *, norm: Norm) -> Tensor:
    """How far each image was moved, in float64."""
    delta = x_adv.cpu().double() - x.cpu().double()
    return delta.flatten(1).abs().amax(1) if norm == "linf" else length(delta).flatten()


def length(delta: Tensor) -> Tensor:
    """Euclidean, per example, shaped to divide `delta` by."""
    return delta.flatten(1).square().sum(1).sqrt().reshape(-1, *[1] * (delta.dim() - 1))


def _exact(x: Tensor) -> Tensor:
    return x.float() if x.device.type == "mps" else x.double()  # MPS has no float64
