"""The theorem along a whole run: what its proof uses, epoch by epoch, with θ* the last moment."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.excitation.assumption import step_products
from excite.excitation.theorem import Span, certify_span
from excite.trace import Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepSizes:
    """How step sizes decay: ηᵏ ~ k^{−exponent} over the second half of the run.

    SGD asks for Σηᵏ = ∞ and Σ(ηᵏ)² < ∞; of power laws those with exponents in (1/2, 1] satisfy both.
    """

    exponent: float

    @property
    def sum_diverges(self) -> bool:
        return self.exponent <= 1

    @property
    def squares_converge(self) -> bool:
        return self.exponent > 0.5

    def __str__(self) -> str:
        return (
            f"The rates decay like k^-{self.exponent:.2g}: Σηᵏ {'diverges' if self.sum_diverges else 'converges'} and "
            f"Σ(ηᵏ)² {'converges' if self.squares_converge else 'diverges'} if they go on so."
        )


@dataclass(frozen=True, eq=False)
class PathCertificate:
    """One entry per recorded step but the last.

    `slopes` are ‖∇l(θᵏ)‖/‖θᵏ − θ*‖, which the proof needs below 1/ηᵏ; `inverse_rates` are those 1/ηᵏ; `spans` hold
    the angle of Assumption 2 and the certificate's contraction rates.
    """

    slopes: Floats
    inverse_rates: Floats
    spans: tuple[Span, ...]
    step_sizes: StepSizes | None

    @property
    def largest_slope(self) -> float:
        """One more reading of L."""
        return float(self.slopes.max())

    @property
    def satisfied(self) -> NDArray[np.bool_]:
        """Where ‖∇l(θᵏ)‖/‖θᵏ − θ*‖ < 1/ηᵏ."""
        return self.slopes < self.inverse_rates

    def __str__(self) -> str:
        certified = f"{sum(span.holds for span in self.spans)} of {len(self.spans)} steps are certified"
        slopes = f"‖∇l‖/‖θ − θ*‖ is at most {self.largest_slope:.3g}"
        if self.step_sizes is None:
            return f"{certified}; {slopes}."
        return f"{certified}; {slopes}, below 1/η at {int(self.satisfied.sum())} of them. {self.step_sizes}"


def certify_path(trace: Trace) -> PathCertificate:
    """The theorem's ingredients at every recorded step of a run."""
    if len(trace) < 3:
        raise InputError(f"The trace holds {len(trace)} moments; this needs 3, the last one being θ*. Record longer.")
    steps, products, rests = step_products(trace)
    lengths = np.sqrt(steps)
    along = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    across = np.sqrt(np.maximum(rests - along**2, 0.0))
    spans = tuple(certify_span(float(u), float(a), float(c)) for u, a, c in zip(lengths, along, across, strict=True))
    to_goal = trace.parameter_distances[:-2, -1]
    norms = trace.gradient_norms[:-2]
    slopes = np.divide(norms, to_goal, out=np.full_like(norms, np.inf), where=to_goal > 0)
    rates = trace.learning_rates
    inverse_rates = np.divide(1.0, rates[:-2], out=np.full(len(slopes), np.nan), where=rates[:-2] > 0)
    known = bool(np.isfinite(rates).all() and (rates > 0).all())
    return PathCertificate(slopes, inverse_rates, spans, step_size_decay(rates) if known else None)


def step_size_decay(rates: Floats) -> StepSizes:
    """Fit the exponent of the decay over the second half of the rates, by least squares on logarithms.

    >>> step_size_decay(0.1 / np.arange(1.0, 101.0)).exponent.__round__(6)
    1.0
    """
    if len(rates) < 2:
        raise InputError("A decay needs at least 2 rates.")
    start = (len(rates) - 1) // 2
    logs = np.log(np.arange(start + 1, len(rates) + 1))
    centred = logs - logs.mean()
    exponent = -float(centred @ np.log(rates[start:])) / float(centred @ centred)
    return StepSizes(0.0 if math.isclose(exponent, 0.0, abs_tol=1e-12) else exponent)
