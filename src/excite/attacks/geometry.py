"""Balls around images in L∞, L2 and L1: projections, steepest directions, random points, distances."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from excite.precision import widest

Norm = Literal["linf", "l2", "l1"]
ORDERS: dict[Norm, float] = {"linf": math.inf, "l2": 2, "l1": 1}
TINY = 1e-12
BISECTIONS = 50
SHARE = 0.05  # of the pixels that a step in an L1 ball changes


def project(x_adv: Tensor, x: Tensor, *, eps: float | Tensor, norm: Norm) -> Tensor:
    """Project `x_adv` onto the ball around `x`, then clip it to [0, 1]; in L1, onto the part of the ball in [0, 1].

    `eps` may be a tensor with one radius per image, in the shape of `per_image`.
    """
    # Rounding can leave x + δ slightly outside the ball; where it does, move one floating-point number toward x.
    if norm == "linf":
        if x.dtype not in (torch.bfloat16, torch.float16):  # rounding errors are negligible
            return torch.clamp(x_adv, x - eps, x + eps).clamp_(0.0, 1.0)
        inside = torch.clamp(x_adv.float(), x.float() - eps, x.float() + eps).to(x.dtype)
        too_far = (inside.float() - x.float()).abs() > eps
        return torch.where(too_far, torch.nextafter(inside, x), inside).clamp_(0.0, 1.0)
    exact = _exact(x)
    delta = _exact(x_adv) - exact
    if norm == "l1":
        delta = _into_l1_ball(delta, exact, eps)
    else:
        delta *= (eps / length(delta).clamp_min(TINY)).clamp_max(1.0)
    inside = (exact + delta).to(x.dtype)
    too_far = (_exact(inside) - exact).abs() > delta.abs()
    return torch.where(too_far, torch.nextafter(inside, x), inside).clamp_(0.0, 1.0)


def _into_l1_ball(delta: Tensor, x: Tensor, eps: float | Tensor) -> Tensor:
    """The nearest δ with ‖δ‖₁ ≤ ε and x + δ in [0, 1] (Croce & Hein 2021).

    Its entries have the sizes min(max(|δᵢ| − λ, 0), roomᵢ). Bisection finds the smallest λ ≥ 0 for which they fit.
    """
    size, room = delta.abs(), torch.where(delta > 0, 1 - x, x)
    high = per_image(size.flatten(1).amax(1), x)  # fits, because it leaves nothing
    low = -high  # so that λ = 0 is tried first
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        sizes = torch.minimum((size - middle).clamp_min(0), room)
        fits = per_image(sizes.flatten(1).sum(1), x) <= eps
        low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
    return torch.minimum((size - high.clamp_min(0)).clamp_min(0), room) * delta.sign()


def ascent(gradient: Tensor, *, norm: Norm, share: float | Tensor = SHARE) -> Tensor:
    """The unit direction, in `norm`, in which a loss with this gradient grows fastest.

    In L1 that is a single pixel. A step follows a `share` of the pixels, those with the largest gradients, because
    single pixels soon reach 0 or 1 (Tramèr & Boneh 2019).
    """
    if norm == "linf":
        return gradient.sign()
    if norm == "l2":
        return gradient / length(gradient).clamp_min(TINY)
    size = gradient.abs().flatten(1)
    n_pixels = size.shape[1]
    rank = torch.as_tensor((1 - share) * n_pixels, device=size.device).clamp(0, n_pixels - 1).long()
    smallest = size.sort(1).values.gather(1, rank.expand(len(size))[:, None])
    signs = gradient.sign() * (size >= smallest).reshape(gradient.shape)
    return signs / per_image(signs.abs().flatten(1).sum(1).clamp_min(1), signs)


def random_point(x: Tensor, *, eps: float, norm: Norm, generator: torch.Generator | None) -> Tensor:
    """A point drawn uniformly from the ball around `x`, then clipped to [0, 1]."""
    draw: dict[str, Any] = {"dtype": x.dtype, "device": generator.device if generator else x.device}
    if norm == "l2":
        delta = ascent(torch.randn(x.shape, generator=generator, **draw), norm=norm)
    else:
        delta = torch.rand(x.shape, generator=generator, **draw) * 2 - 1
    if norm == "l1":
        delta = delta.sign() * delta.abs().clamp_min(TINY).log()  # so that every direction is equally likely
        delta = delta / per_image(delta.abs().flatten(1).sum(1), x)
    if norm != "linf":
        radius = torch.rand(x.shape[0], generator=generator, **draw)
        delta = delta * per_image(radius.pow(1 / x[0].numel()), x)
    return project(x + eps * delta.to(x.device), x, eps=eps, norm=norm)


def distance(x_adv: Tensor, x: Tensor, *, norm: Norm) -> Tensor:
    """How far each image was moved, in float64."""
    delta = x_adv.cpu().double() - x.cpu().double()
    return p_norm(delta, ORDERS[norm])


def p_norm(delta: Tensor, p: float) -> Tensor:
    """The p-norm of each example."""
    sizes: Tensor = torch.linalg.vector_norm(delta.flatten(1), p, dim=1)
    return sizes


def length(delta: Tensor) -> Tensor:
    """The Euclidean norm of each example, in a shape that `delta` can be divided by."""
    return per_image(delta.flatten(1).square().sum(1).sqrt(), delta)


def per_image(values: Tensor, x: Tensor) -> Tensor:
    """One value per example, in a shape that can be combined with the images `x`."""
    return values.reshape(-1, *[1] * (x.dim() - 1))


def _exact(x: Tensor) -> Tensor:
    return x.to(widest(x.device))
