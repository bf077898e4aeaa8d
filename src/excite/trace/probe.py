"""Fixed examples on which the training loss is evaluated again and again, and the curvature of that loss.

The model is evaluated in train mode, in equal batches of about the training batch size. Batch norm then uses batch
statistics, as it does in training. Dropout masks are the same at every evaluation. An adversarial objective attacks
once per batch, and all evaluations use those perturbations.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.errors import InputError
from excite.objectives.protocol import Objective, frozen
from excite.randomness import seed_all, undisturbed

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits, targets) -> a scalar or one loss per example

MIN_ITERATIONS = 6  # a small residual means that an eigenvalue is near; a few more steps find the largest one


@dataclass(frozen=True, eq=False)
class Probe:
    """Examples `x` with targets `y` (labels or soft labels), and the loss on them.

    `objective(model, x, y)`, if given, replaces `loss(model(x), y)`, for example for adversarial training. The number
    of batches is chosen so that their size is closest to `batch_size`. Every example has the same weight.
    """

    x: Tensor
    y: Tensor
    batch_size: int = 128
    loss: Loss = cross_entropy
    objective: Objective | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.x) == 0 or len(self.x) != len(self.y):
            raise InputError(f"A probe needs examples with one target each, not {len(self.x)} with {len(self.y)}.")

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        count = max(1, round(len(self.x) / self.batch_size))
        return list(zip(self.x.tensor_split(count), self.y.tensor_split(count), strict=True))

    def evaluations(self, model: nn.Module) -> Iterator[tuple[Tensor, Callable[[], Tensor]]]:
        """For each batch its examples and a function that returns its share of the mean loss.

        The model is `as_in_training` during the iteration. An adversarial objective attacks each batch when it is
        reached.
        """
        device = next(model.parameters()).device
        with as_in_training(model):
            for index, (x, y) in enumerate(self.batches):
                inputs, targets = x.to(device).detach(), y.to(device)
                seed_all(self.seed + index, device)
                loss = frozen(self.objective or (lambda model, x, y: self.loss(model(x), y)), model, inputs, targets)
                yield inputs, partial(self._share, loss, len(x) / len(self.x), self.seed + index, device)

    @staticmethod
    def _share(loss: Callable[[], Tensor], weight: float, seed: int, device: torch.device) -> Tensor:
        seed_all(seed, device)
        return weight * loss().mean()


@contextlib.contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in train mode, except layers that the loop keeps in eval mode; then all is restored."""
    with undisturbed(model, next(model.parameters()).device):
        if not model.training:
            model.train()
        yield


def input_gradient(model: nn.Module, probe: Probe) -> Tensor:
    """Gradient with respect to the pixels, averaged over the batch once more than the loss is: the released code's."""
    total = torch.zeros(probe.x[0].numel())
    for inputs, loss in probe.evaluations(model):
        inputs.requires_grad_(True)
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(), inputs)
        total += gradient.mean(0).reshape(-1).cpu()
    return total


@dataclass(frozen=True)
class Curvature:
    """`value` ≥ 0 is within `residual` of the absolute value of an eigenvalue; NaN if the loss is not finite."""

    value: float
    residual: float


def largest_curvature(
    model: nn.Module,
    probe: Probe,
    *,
    parameters: Sequence[Tensor] | None = None,
    iterations: int = 20,
    tolerance: float = 0.01,
    seed: int = 0,
) -> Curvature:
    """Largest absolute eigenvalue λ of the Hessian H of the probe's loss, by Lanczos iteration.

    For some unit vector v, ‖H v − λ v‖ ≤ residual. The iteration stops when the residual is below `tolerance` × λ; the
    error of λ is of the order of its square. H is taken with respect to `parameters`, by default all parameters of the
    model that require gradients. Memory: six vectors of the model's size and the graph of one batch. For ½ θᵀAθ the
    value is the largest |eigenvalue| of A.
    """
    parameters = [p for p in (model.parameters() if parameters is None else parameters) if p.requires_grad]
    device, dtype = parameters[0].device, parameters[0].dtype
    losses = [loss for _, loss in probe.evaluations(model)]
    generator = torch.Generator().manual_seed(seed)
    size = sum(parameter.numel() for parameter in parameters)
    vector = torch.randn(size, generator=generator, dtype=dtype).to(device)
    vector /= vector.norm()
    previous, beta = torch.zeros_like(vector), 0.0
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    result = Curvature(0.0, 0.0)
    for iteration in range(1, min(iterations, size) + 1):
        image = hessian_vector_product(model, parameters, losses, vector)
        alpha = float(torch.dot(image, vector))
        image -= alpha * vector + beta * previous
        beta = float(image.norm())
        if not (math.isfinite(alpha) and math.isfinite(beta)):
            return Curvature(math.nan, math.nan)
        diagonal.append(alpha)
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1))
        best = int(np.abs(values).argmax())
        result = Curvature(abs(float(values[best])), beta * abs(float(vectors[-1, best])))
        exhausted = beta <= 1e-7 * (abs(alpha) + sum(off_diagonal[-1:]))
        if exhausted or (iteration >= MIN_ITERATIONS and result.residual <= tolerance * result.value):
            break
        off_diagonal.append(beta)
        previous, vector = vector, image / beta
    return result


def hessian_vector_product(
    model: nn.Module, parameters: Sequence[Tensor], losses: Sequence[Callable[[], Tensor]], vector: Tensor
) -> Tensor:
    """H v, where H is the Hessian of the sum of `losses`."""
    product = torch.zeros_like(vector)
    with torch.enable_grad(), as_in_training(model):
        for loss in losses:
            gradients = torch.autograd.grad(loss(), parameters, create_graph=True, materialize_grads=True)
            along = torch.dot(_flat(gradients), vector)
            if along.requires_grad:  # it does not if the loss is linear
                product += _flat(torch.autograd.grad(along, parameters, materialize_grads=True))
    return product


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
