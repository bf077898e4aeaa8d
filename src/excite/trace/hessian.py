"""The largest |eigenvalue| of a loss Hessian, by Lanczos on Hessian-vector products over a probe."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from excite.registry import named_options
from excite.trace.probe import Probe, as_in_training
from excite.trace.used_gradient import check_seen

_FEWEST = 6  # a small residual says that an eigenvalue is near; a few more steps make it the largest one


@dataclass(frozen=True)
class Curvature:
    """`value` ≥ 0, within `residual` of an eigenvalue's absolute value; NaN where the loss is not finite."""

    value: float
    residual: float
    iterations: int


@named_options
def largest_curvature(
    model: nn.Module,
    probe: Probe,
    *,
    parameters: Sequence[Tensor] | None = None,
    iterations: int = 20,
    tolerance: float = 0.01,
    seed: int = 0,
) -> Curvature:
    """λ with ‖H v − λ v‖ ≤ residual for some unit vector v, H the Hessian of the probe's loss.

    H is that in the `parameters`, by default all of the model's; those that require no gradient are left out.
    Under an adversarial objective that is the loss at the perturbations found when the look begins.
    Stops once the residual is below `tolerance` × λ. The error of λ itself is of the order of its square. Memory:
    three vectors of the model's size and the graph of one batch. For ½ θᵀAθ the value is the largest |eigenvalue| of A.
    """
    parameters = [p for p in (model.parameters() if parameters is None else parameters) if p.requires_grad]
    device, dtype = parameters[0].device, parameters[0].dtype
    losses = probe.held(model)
    generator = torch.Generator().manual_seed(seed)
    size = sum(parameter.numel() for parameter in parameters)
    vector = torch.randn(size, generator=generator, dtype=dtype).to(device)
    vector /= vector.norm()
    previous, beta = torch.zeros_like(vector), 0.0
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    result = Curvature(0.0, 0.0, 0)
    for done in range(1, min(iterations, size) + 1):
        image = hessian_vector_product(model, parameters, losses, vector)
        alpha = float(torch.dot(image, vector))
        image -= alpha * vector + beta * previous
        beta = float(image.norm())
        if not (math.isfinite(alpha) and math.isfinite(beta)):
            return Curvature(math.nan, math.nan, done)
        diagonal.append(alpha)
        result = _ritz(diagonal, off_diagonal, beta, done)
        exhausted = beta <= 1e-7 * (abs(alpha) + sum(off_diagonal[-1:]))
        if exhausted or (done >= _FEWEST and result.residual <= tolerance * result.value):
            break
        off_diagonal.append(beta)
        previous, vector = vector, image / beta
    return result


def hessian_vector_product(
    model: nn.Module, parameters: Sequence[Tensor], losses: Sequence[Callable[[], Tensor]], vector: Tensor
) -> Tensor:
    """H v, H the Hessian of the sum of `losses`."""
    product = torch.zeros_like(vector)
    sizes = [parameter.numel() for parameter in parameters]
    pieces = [piece.view(p.shape) for piece, p in zip(torch.split_with_sizes(vector, sizes), parameters, strict=True)]
    with torch.enable_grad(), as_in_training(model):
        for loss in losses:
            value = loss()
            gradients = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
            check_seen(value, gradients)
            curved = [
                (gradient, piece)
                for gradient, piece in zip(gradients, pieces, strict=True)
                if gradient is not None and gradient.requires_grad
            ]
            if not curved:
                continue
            images = torch.autograd.grad(
                [gradient for gradient, _ in curved], parameters, [piece for _, piece in curved], allow_unused=True
            )
            for target, image in zip(torch.split_with_sizes(product, sizes), images, strict=True):
                if image is not None:
                    target.add_(image.reshape(-1))
    return product


def _ritz(diagonal: list[float], off_diagonal: list[float], beta: float, done: int) -> Curvature:
    tridiagonal = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    values, vectors = np.linalg.eigh(tridiagonal)
    best = int(np.abs(values).argmax())
    return Curvature(abs(float(values[best])), beta * abs(float(vectors[-1, best])), done)
