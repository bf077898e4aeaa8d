"""A step lies on a persistently excited trajectory to θ* if and only if it makes an acute angle with the rest.

Let u = θᵏ − θᵏ⁺¹ be the step and q = θᵏ⁺¹ − θ* the rest of the way. A full-rank ΦΦᵀ with q = e^{−ΦΦᵀ}(u + q) exists if
and only if uᵀq > 0. One choice is ΦΦᵀ = log(I + B⁻¹) with B = I − uuᵀ/uᵀu + qqᵀ/qᵀu, which maps u to q. Outside
span(u, q) it is log 2 times the identity, so the cost is O(d). At uᵀq = 0 the paper's condition Σ ≺ I fails.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from excite import html
from excite.errors import InputError
from excite.precision import double
from excite.quantities import check_kind

Angle = Literal["acute", "right", "obtuse"]
Pair = tuple[float, float]

_ROUNDING = 16 * torch.finfo(torch.float64).eps
_OUTSIDE = math.log(2)  # the rate in every direction outside span(u, q)


@dataclass(frozen=True)
class Span:
    """The certificate inside span(u, q), in the orthonormal basis of u and the component of q orthogonal to u.

    `directions` are the two eigenvectors, columns of the paper's U. `shares` are the eigenvalues of I − e^{−ΦΦᵀ}, the
    paper's Σ. `rates` are the eigenvalues of ΦΦᵀ: in this step, errors along a direction shrink by e^{−rate}. All are
    NaN if the step is not certified.
    """

    angle: Angle
    cosine: float  # between the step and the rest
    directions: tuple[Pair, Pair]
    shares: Pair
    rates: Pair
    residual: float  # ‖q − e^{−ΦΦᵀ}(u + q)‖ / ‖u + q‖, zero up to rounding

    @property
    def holds(self) -> bool:
        return self.angle == "acute"


def certify_span(step: float, along: float, across: float, *, margin: float = 0.0) -> Span:
    """Certify a step from ‖u‖ and the components of q parallel and orthogonal to u.

    An angle counts as right if its cosine is within `margin` or rounding error of 0.
    """
    margin = max(margin, _ROUNDING)
    rest = math.hypot(along, across)
    cosine = along / rest if step > 0 and rest > 0 else 0.0
    if cosine <= margin:
        unknown = (math.nan, math.nan)
        return Span("right" if cosine >= -margin else "obtuse", cosine, (unknown, unknown), unknown, unknown, math.nan)
    # B is [[a, b], [b, c]] here, and its determinant is a.
    a, b = along / step, across / step
    c = 1 + b * (b / a)
    half = (c - a) / 2
    root = math.hypot(half, b)
    large = (a + c) / 2 + root
    small = a / large
    x, y = (b, half + root) if half >= 0 else (root - half, b)  # eigenvector of `large`
    norm = math.hypot(x, y)
    x, y = (x / norm, y / norm) if norm > 0 else (0.0, 1.0)
    shares = (1 / (1 + small), 1 / (1 + large))
    directions, rates = ((-y, x), (x, y)), (math.log1p(1 / small), math.log1p(1 / large))
    whole = (step + along, across)
    shrunk = [math.exp(-rate) * (v[0] * whole[0] + v[1] * whole[1]) for rate, v in zip(rates, directions, strict=True)]
    reached = [sum(size * v[axis] for size, v in zip(shrunk, directions, strict=True)) for axis in (0, 1)]
    residual = math.hypot(along - reached[0], across - reached[1]) / math.hypot(*whole)
    return Span("acute", cosine, directions, shares, rates, residual)


@dataclass(frozen=True, eq=False)
class Certificate:
    """Whether θᵏ and θᵏ⁺¹ lie on a trajectory of the reference family, and on which one.

    `residual` is ‖(θᵏ⁺¹ − θ*) − e^{−ΦΦᵀ}(θᵏ − θ*)‖ / ‖θᵏ − θ*‖; NaN if the step is not certified.
    """

    span: Span
    residual: float
    basis: tuple[Tensor, Tensor]  # orthonormal, of the span

    @property
    def holds(self) -> bool:
        return self.span.holds

    @property
    def rates(self) -> Pair:
        """Contraction rates inside span(u, q); the rate is log 2 in all other directions."""
        return self.span.rates

    def excite(self, vector: Tensor) -> Tensor:
        """ΦΦᵀ v."""
        return self._apply(vector, self.rates, _OUTSIDE)

    def contract(self, vector: Tensor) -> Tensor:
        """e^{−ΦΦᵀ} v: the error v after this step."""
        first, second = self.rates
        return self._apply(vector, (math.exp(-first), math.exp(-second)), math.exp(-_OUTSIDE))

    def _repr_html_(self) -> str:
        return html.paragraphs(str(self))

    def __str__(self) -> str:
        if self.holds:
            slow, fast = sorted(self.rates)
            return (
                f"Certified: the step makes an acute angle with the rest (cosine {self.span.cosine:.3g}). Errors "
                f"shrink at rates {slow:.3g} and {fast:.3g} in the plane of both and at log 2 elsewhere; "
                f"residual {self.residual:.1e}."
            )
        if self.span.angle == "right":
            return (
                "Not certified: the step makes a right angle with the rest, or one of them is zero (equality in "
                "Assumption 2), so Σ ≺ I fails."
            )
        return f"Not certified: the step overshoots (cosine {self.span.cosine:.3g} < 0); Assumption 2 is violated."

    def _apply(self, vector: Tensor, inside: Pair, outside: float) -> Tensor:
        """Apply a function of ΦΦᵀ, with these eigenvalues inside and outside the span, to a vector."""
        if not self.holds:
            raise InputError(f"{self} So there is no ΦΦᵀ to apply.")
        flat = vector.reshape(-1).to(self.basis[0].device).to(torch.float64)
        first, second = (float(flat @ direction) for direction in self.basis)
        along = across = 0.0
        for value, (x, y) in zip(inside, self.span.directions, strict=True):
            weight = (value - outside) * (x * first + y * second)
            along, across = along + weight * x, across + weight * y
        return (outside * flat + along * self.basis[0] + across * self.basis[1]).view(vector.shape)


def certificate(theta: Tensor, theta_next: Tensor, theta_star: Tensor) -> Certificate:
    """Certify the step from `theta` to `theta_next` with respect to the true parameters `theta_star`.

    With u = θᵏ − θᵏ⁺¹ and q = θᵏ⁺¹ − θ*, a symmetric ΦΦᵀ ≻ 0 with q = e^{−ΦΦᵀ}(θᵏ − θ*) exists if and only if
    uᵀq > 0. Time and memory are O(d), in float64, which devices without it, such as Apple's MPS, leave to the CPU.

    Args:
        theta: θᵏ, of any shape.
        theta_next: θᵏ⁺¹, with the same number of entries.
        theta_star: θ*, for example the parameters at the end of training.

    Returns:
        Whether the certificate holds, the contraction rates, and ΦΦᵀ as an operator (`excite`, `contract`).

    >>> str(certificate(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.8]), torch.zeros(2)))[:9]
    'Certified'
    """
    for name, vector in (("theta", theta), ("theta_next", theta_next), ("theta_star", theta_star)):
        check_kind(name, vector, "detach", "a tensor of all parameters")
    now, after, goal = (double(vector.detach().reshape(-1)) for vector in (theta, theta_next, theta_star))
    if not len(now) == len(after) == len(goal) > 0:
        raise InputError(
            f"theta, theta_next and theta_star have {len(now)}, {len(after)} and {len(goal)} entries; pass the same "
            "parameters of each."
        )
    u, q = now - after, after - goal
    squared_step = float(u @ u)
    share = float(u @ q) / squared_step if squared_step > 0 else 0.0
    orthogonal = q - share * u
    step, across = math.sqrt(squared_step), math.sqrt(float(orthogonal.square().sum()))
    if not math.isfinite(step + across):
        raise InputError("The parameters contain non-finite values; certify steps of a run that did not diverge.")
    basis = (u / step, orthogonal / across if across > 0 else torch.zeros_like(q))
    certified = Certificate(certify_span(step, share * step, across), math.nan, basis)
    if not certified.holds:
        return certified
    whole = now - goal
    missed = q - certified.contract(whole)
    return replace(certified, residual=math.sqrt(float(missed.square().sum()) / float(whole @ whole)))
