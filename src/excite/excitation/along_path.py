"""The theorem along a recorded run: both assumptions and the certificate at each step."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excite.excitation.assumption import Acuteness, acuteness, step_products
from excite.excitation.theorem import Span, certify_span
from excite.lipschitz.algorithm_1 import secants
from excite.lipschitz.protocol import LipschitzEstimate
from excite.quantities import check_positive
from excite.trace import Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Smoothness:
    """Assumption 1, as far as a run can refute it: the number of recorded slopes above L."""

    constant: float  # L
    slopes: int
    above: int
    largest: float

    @property
    def holds(self) -> bool:
        return self.above == 0

    def __str__(self) -> str:
        if self.holds:
            return f"Assumption 1: none of {self.slopes} recorded slopes exceeds L = {self.constant:.3g}."
        above = f"{self.above} of {self.slopes} recorded slopes exceed L = {self.constant:.3g}"
        return f"Assumption 1 is violated: {above}; the largest is {self.largest:.3g}."


@dataclass(frozen=True)
class Excitation:
    """Definition 1 for the certified steps: μ₂ I ≥ ∫ΦΦᵀ ≥ μ₁ I over windows of T₀; a step is the unit of time.

    ΦΦᵀ is constant and symmetric within a step, so Lemma 1 is exact: errors shrink by e^{−λ}, where λ is its smallest
    eigenvalue. That is at least μ₁, and `mean_rate` on average over the certified steps. ΦΦᵀ exists only at certified
    steps, so the whole path is persistently excited only if all steps are certified (`everywhere`).
    """

    smallest: float  # μ₁ in the paper
    largest: float  # μ₂ in the paper
    window: float  # T₀ in the paper
    mean_rate: float
    everywhere: bool

    def __str__(self) -> str:
        where = "Persistently excited at every step" if self.everywhere else "Persistently excited at certified steps"
        return (
            f"{where}: {self.largest:.3g} I ≥ ∫ΦΦᵀ ≥ {self.smallest:.3g} I over windows of {self.window:g} step; "
            f"errors shrink at least like e^(−{self.smallest:.3g} k), on average like e^(−{self.mean_rate:.3g} k)."
        )


@dataclass(frozen=True, eq=False)
class PathCertificate:
    """One entry per recorded step, except the last step, which ends at θ*.

    `slopes` are ‖∇l(θᵏ)‖/‖θᵏ − θ*‖, which the proof requires to be below `inverse_rates`, 1/ηᵏ. `angles` are those of
    Assumption 2, `spans` the certificates with their contraction rates. `smoothness` compares the recorded slopes with
    L (Assumption 1). `excitation` has the bounds of Definition 1 and Lemma 1; None if no step is certified.
    """

    slopes: Floats
    inverse_rates: Floats
    angles: Acuteness
    spans: tuple[Span, ...]
    decay: float | None  # of the learning rates; see `step_size_decay`
    smoothness: Smoothness | None
    excitation: Excitation | None

    @property
    def largest_slope(self) -> float:
        """Another estimate of L."""
        return float(self.slopes.max())

    @property
    def satisfied(self) -> NDArray[np.bool_]:
        """Steps at which ‖∇l(θᵏ)‖/‖θᵏ − θ*‖ < 1/ηᵏ."""
        return self.slopes < self.inverse_rates

    @property
    def certified(self) -> NDArray[np.bool_]:
        return np.array([span.holds for span in self.spans])

    def __str__(self) -> str:
        parts = [] if self.smoothness is None else [str(self.smoothness)]
        parts.append(str(self.angles))
        below = "" if self.decay is None else f", and below 1/η at {int(self.satisfied.sum())} of them"
        parts.append(
            f"{int(self.certified.sum())} of {len(self.spans)} steps are certified; "
            f"‖∇l‖/‖θ − θ*‖ is at most {self.largest_slope:.3g}{below}."
        )
        parts.append("No step is persistently excited." if self.excitation is None else str(self.excitation))
        if self.decay:
            parts.append(f"The rates {'rise' if self.decay < 0 else 'decay'} like k^{-self.decay:.2g}.")
        return " ".join(parts)


def certify(trace: Trace, estimate: LipschitzEstimate | float | None = None) -> PathCertificate:
    """Check both assumptions, the certificate and the bounds of Definition 1 at every recorded step of a run.

    A step goes from one moment to the next: usually an epoch of SGD. The theorem is about gradient descent: to check
    that, record every step with `gradient="probe"` and all training examples as the probe. In a sketched trace, a step
    is certified only if the sketch can tell its angle from a right angle. `estimate` is the L for Assumption 1.
    """
    if not (estimate is None or isinstance(estimate, LipschitzEstimate)):
        check_positive("L", estimate)
    angles = acuteness(trace)  # checks the length of the trace
    steps, products, rests = step_products(trace)
    lengths = np.sqrt(steps)
    along = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    across = np.sqrt(np.maximum(rests - along**2, 0.0))
    spans = tuple(
        certify_span(float(u), float(a), float(c), margin=angles.margin)
        for u, a, c in zip(lengths, along, across, strict=True)
    )
    to_goal = trace.parameter_distances[:-2, -1]
    norms = trace.gradient_norms[:-2]
    rates = trace.learning_rates if len(trace.learning_rates) else np.full(len(trace), np.nan)
    used = rates[1:-1]  # the rate recorded at a moment is that of the step that ends there
    known = bool(np.isfinite(rates).all() and (rates > 0).all())
    return PathCertificate(
        slopes=np.divide(norms, to_goal, out=np.full_like(norms, np.inf), where=to_goal > 0),
        inverse_rates=np.divide(1.0, used, out=np.full(len(norms), np.nan), where=used > 0),
        angles=angles,
        spans=spans,
        decay=step_size_decay(rates) if known else None,
        smoothness=None if estimate is None else smoothness(trace, estimate),
        excitation=excitation(spans),
    )


def smoothness(trace: Trace, estimate: LipschitzEstimate | float) -> Smoothness:
    """Compare all recorded slopes with L: those of single steps, and the secants between every two moments."""
    constant = estimate.constant if isinstance(estimate, LipschitzEstimate) else float(estimate)
    slopes = np.concatenate([trace.slopes, secants(trace)[np.triu_indices(len(trace), 1)]])
    return Smoothness(constant, len(slopes), int((slopes > constant).sum()), float(slopes.max(initial=0.0)))


def excitation(spans: tuple[Span, ...]) -> Excitation | None:
    """μ₁ and μ₂ over windows of one step; None if no step is certified.

    The two rates inside span(u, q) are the extremes, because the rate of all other directions, log 2, is between them.
    """
    certified = [span for span in spans if span.holds]
    if not certified:
        return None
    slow = [min(span.rates) for span in certified]
    largest = max(max(span.rates) for span in certified)
    everywhere = len(certified) == len(spans)
    return Excitation(min(slow), largest, 1.0, mean_rate=sum(slow) / len(slow), everywhere=everywhere)


def step_size_decay(rates: Floats) -> float:
    """The exponent of ηᵏ ~ k^{−exponent}, by least squares on logarithms, over the second half of at least two rates.

    SGD requires Σηᵏ = ∞ and Σ(ηᵏ)² < ∞. Power laws satisfy both if the exponent is in (1/2, 1].

    >>> step_size_decay(0.1 / np.arange(1.0, 101.0)).__round__(6)
    1.0
    """
    start = (len(rates) - 1) // 2
    logs = np.log(np.arange(start + 1, len(rates) + 1))
    centered = logs - logs.mean()
    exponent = -float(centered @ np.log(rates[start:])) / float(centered @ centered)
    return 0.0 if math.isclose(exponent, 0.0, abs_tol=1e-12) else exponent
