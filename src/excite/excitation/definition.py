"""A signal Φ is persistently exciting if ∫ΦΦᵀ over every window lies between two positive multiples of the identity.

Φ is piecewise constant, one matrix per time step. For windows of a whole number of steps, the extreme eigenvalues occur
at windows that start on a step, so it suffices to check those.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from excite.errors import InputError
from excite.precision import double
from excite.quantities import check_positive


@dataclass(frozen=True)
class Gramian:
    """Definition 1 for a sampled signal: μ₂ I ≥ ∫ΦΦᵀ ≥ μ₁ I over every window of length T₀.

    `rate` is the exponential rate of ż = −ΦΦᵀz over the worst window: ‖z(t + T₀)‖ ≤ e^{−rate·T₀} ‖z(t)‖.
    `guaranteed_rate` ≤ `rate` follows from μ₁ and μ₂ alone (Lemma 1): ‖z(t + T₀)‖² ≤ (1 − 2μ₁/(1 + d μ₂)²) ‖z(t)‖².
    """

    smallest: float  # μ₁ in the paper
    largest: float  # μ₂ in the paper
    window: float  # T₀ in the paper
    persistently_exciting: bool
    rate: float
    guaranteed_rate: float

    def __str__(self) -> str:
        verdict = "Persistently exciting" if self.persistently_exciting else "Not persistently exciting"
        return (
            f"{verdict}: {self.largest:.3g} I ≥ ∫ΦΦᵀ ≥ {self.smallest:.3g} I over windows of {self.window:g}; "
            f"errors shrink at a rate of {self.rate:.3g} (guaranteed: {self.guaranteed_rate:.3g})."
        )


def gramian(signal: Tensor, window: float, *, step: float = 1.0) -> Gramian:
    """Check Definition 1 on a signal of shape (times, d, p), or (times, d) for p = 1.

    `window` is T₀, a multiple of `step`. For a constant Φ = √2 I and T₀ = 3, μ₁ = μ₂ = 6 and the rate is 2.
    """
    check_positive("window", window)
    check_positive("step", step)
    signal = _as_matrices(signal)
    length = round(window / step)
    if length < 1 or length > len(signal) or not math.isclose(length * step, window, rel_tol=1e-9):
        raise InputError(f"window is {window:g}; it must be a multiple of {step:g}, at most {len(signal) * step:g}.")
    squares = signal @ signal.mT * step
    windows = torch.stack([squares[start : start + length].sum(0) for start in range(len(squares) - length + 1)])
    eigenvalues = torch.linalg.eigvalsh(windows)
    smallest, largest = max(float(eigenvalues[:, 0].min()), 0.0), float(eigenvalues[:, -1].max())
    if not smallest > 1e-12 * largest:
        return Gramian(0.0, largest, window, persistently_exciting=False, rate=0.0, guaranteed_rate=0.0)
    transitions, worst = torch.linalg.matrix_exp(-squares), 0.0
    for start in range(len(squares) - length + 1):
        product = torch.eye(signal.shape[1], dtype=signal.dtype, device=signal.device)
        for transition in transitions[start : start + length]:
            product = transition @ product
        worst = max(worst, float(torch.linalg.matrix_norm(product, 2)))
    rate = -math.log(worst) / window if worst > 0 else math.inf
    guaranteed = -math.log1p(-2 * smallest / (1 + signal.shape[1] * largest) ** 2) / (2 * window)
    return Gramian(smallest, largest, window, persistently_exciting=True, rate=rate, guaranteed_rate=guaranteed)


def simulate(signal: Tensor, initial: Tensor, *, step: float = 1.0) -> Tensor:
    """Exact solution of ż = −ΦΦᵀz at every step, z ← e^{−ΦΦᵀ·step} z; shape (times + 1, d)."""
    check_positive("step", step)
    path = [double(initial)]
    for matrix in _as_matrices(signal):
        directions, sizes, _ = torch.linalg.svd(matrix, full_matrices=False)
        along = directions.mT @ path[-1]
        path.append(path[-1] + directions @ (torch.expm1(-sizes.square() * step) * along))
    return torch.stack(path)


def _as_matrices(signal: Tensor) -> Tensor:
    if signal.ndim not in (2, 3) or not signal.isfinite().all():
        raise InputError(f"A signal must be finite, (times, d) or (times, d, p), not {tuple(signal.shape)}.")
    matrices = double(signal)
    return matrices if matrices.ndim == 3 else matrices.unsqueeze(-1)
