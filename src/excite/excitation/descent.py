"""Gradient descent certified at every step: at which steps it is persistently excited, and at which not.

The theorem is about this: full-batch steps θᵏ⁺¹ = θᵏ − η ∇l(θᵏ) of one smooth loss. Below 1/L the step cannot overshoot
θ* along any eigenvector of a quadratic. Above it, it does along the sharpest one, and the certificate holds as long as
the other directions outweigh that. At 2/L it bounces forever. In one dimension nothing outweighs it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from excite.errors import InputError
from excite.excitation.theorem import Certificate, certificate
from excite.registry import named_options

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CertifiedDescent:
    """One entry per step, at one constant rate.

    `distances` are ‖θᵏ − θ*‖, `slopes` ‖∇l(θᵏ)‖/‖θᵏ − θ*‖, `cosines` those of Assumption 2's angle, `rates` the two
    contraction rates of the certificate (NaN where there is none) and `residuals` how well its trajectory meets θᵏ⁺¹.
    """

    rate: float
    distances: Floats
    slopes: Floats
    cosines: Floats
    certified: NDArray[np.bool_]
    rates: Floats
    residuals: Floats

    @property
    def fraction(self) -> float:
        """Share of the steps that are certified."""
        return float(self.certified.mean())

    def __str__(self) -> str:
        lost = np.flatnonzero(~self.certified)
        first = "every step is certified" if not len(lost) else f"not certified first at step {lost[0] + 1}"
        residual = np.nanmax(self.residuals) if self.certified.any() else math.nan
        return (
            f"Gradient descent at {self.rate:.3g}: {int(self.certified.sum())} of {len(self.certified)} steps are "
            f"certified ({first}), with residuals up to {residual:.1e}; ‖θ − θ*‖ goes from {self.distances[0]:.3g} to "
            f"{self.distances[-1]:.3g}."
        )


@named_options
def certify_descent(
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    rate: float,
    steps: int,
    goal: Tensor | None = None,
    beyond: int = 1,
) -> CertifiedDescent:
    """Descend from `start` and certify each of `steps` steps.

    Args:
        gradient: ∇l at a vector of parameters, of all data: no mini-batch.
        goal: θ*, where it is known; else it is where descent has come after `beyond` steps more.
        beyond: one at least: of a step that ends at θ* nothing can be said.

    >>> curvatures = torch.tensor([4.0, 1.0])  # L = 4
    >>> quadratic = lambda theta: curvatures * theta
    >>> for multiple in (1, 2):
    ...     descent = certify_descent(quadratic, torch.ones(2), rate=multiple / 4, steps=20, goal=torch.zeros(2))
    ...     print(multiple, int(descent.certified.sum()))
    1 20
    2 0
    """
    if steps < 1 or not (math.isfinite(rate) and rate > 0) or beyond < 1:
        raise InputError(f"Descent needs a positive rate and a step at least, not {rate} and {steps} (+ {beyond}).")
    path, gradients = [start.detach().to(torch.float64)], []
    for _ in range(steps + (beyond if goal is None else 0)):
        slope = gradient(path[-1]).detach()
        gradients.append(float(slope.norm()))
        path.append(path[-1] - rate * slope)
        if not path[-1].isfinite().all():
            raise InputError(
                f"Descent at {rate:.3g} left the finite numbers after {len(gradients)} steps: nothing to certify. "
                "Pass a smaller rate."
            )
    end = path[-1] if goal is None else goal.detach().to(torch.float64)
    certificates: list[Certificate] = [certificate(path[k], path[k + 1], end) for k in range(steps)]
    distances = np.array([float((theta - end).norm()) for theta in path[: steps + 1]])
    slopes = np.divide(gradients[:steps], distances[:steps], out=np.full(steps, np.inf), where=distances[:steps] > 0)
    return CertifiedDescent(
        rate=rate,
        distances=distances,
        slopes=slopes,
        cosines=np.array([found.span.cosine for found in certificates]),
        certified=np.array([found.holds for found in certificates]),
        rates=np.array([sorted(found.rates) for found in certificates]),
        residuals=np.array([found.residual for found in certificates]),
    )
