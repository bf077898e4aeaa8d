"""Is a step of SGD acute in expectation? And what is the smallest batch for which it is?

SGD moves by u = ηd from θ, and w = θ − θ* is the way to go. The direction d has mean m and covariance a²Σ/B in batches
of B. So E[uᵀ(w − u)] = η⟨m, w⟩ − η²(‖m‖² + a² tr(Σ)/B), which is positive if and only if

    η < ⟨m, w⟩ / (‖m‖² + a² tr(Σ)/B),   or   B > a² tr(Σ) / (⟨m, w⟩/η − ‖m‖²) if ⟨m, w⟩ > η‖m‖²; else for no B.

Without momentum m = ∇l and a = 1. With momentum β and its buffer v, m = βv + ∇l and a = 1; with Nesterov's
m = β²v + (1 + β)∇l and a = 1 + β. The expectation is over the batch of this step, given θ, v and θ*.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.excitation.assumption import STANDARD_ERRORS, check_length
from excite.quantities import check_kind
from excite.trace import Trace

Floats = NDArray[np.float64]

HOW_TO_RECORD = (
    "Batch statistics were not recorded. Set record.noise_examples = 512, or pass Recorder(…, draw=…), a function that "
    "draws training examples anew."
)


@dataclass(frozen=True, eq=False)
class ExpectedAcuteness:
    """E[uᵀq] of a step of SGD at each moment, and the batch sizes for which it is positive.

    >>> ahead, squared, noise, rate = np.array([[1.0], [4.0], [30.0], [0.1]])
    >>> one = ExpectedAcuteness(ahead, squared, noise, rate, batch_size=4)
    >>> one.products.round(6), one.largest_rates.round(3), one.batch_sizes.round(6)
    (array([-0.015]), array([0.087]), array([5.]))
    """

    ahead: Floats  # ⟨m, θ − θ*⟩
    squared: Floats  # ‖m‖²
    noise: Floats  # a² tr(Σ)
    rate: Floats  # η
    batch_size: int  # B
    margin: Floats = field(default_factory=partial(np.zeros, 1))  # two standard errors of E[uᵀq], if it was sketched

    @property
    def products(self) -> Floats:
        """E[uᵀq]."""
        return self.rate * self.ahead - self.rate**2 * (self.squared + self.noise / self.batch_size)

    @property
    def holds(self) -> NDArray[np.bool_]:
        return self.products > 0

    @property
    def undecided(self) -> NDArray[np.bool_]:
        """Moments at which sketched vectors do not tell the sign; none with exact vectors."""
        return np.abs(self.products) < self.margin

    @property
    def largest_rates(self) -> Floats:
        """The rate below which a step is acute in expectation; 0 or less if it is at no rate."""
        return self.ahead / (self.squared + self.noise / self.batch_size)

    @property
    def batch_sizes(self) -> Floats:
        """Steps with batches larger than this are acute in expectation; infinite if no batch would do."""
        noise, without_noise = self.rate * self.noise, self.ahead - self.rate * self.squared
        return np.divide(noise, without_noise, out=np.full_like(noise, np.inf), where=without_noise > 0)

    def batch_size_for(self, share: float = 1.0) -> int | None:
        """The smallest batch with which this share of steps is acute in expectation; None if no batch would do."""
        needed = np.sort(self.batch_sizes)[max(math.ceil(share * len(self.batch_sizes)), 1) - 1]
        return math.floor(needed) + 1 if math.isfinite(needed) else None

    def to_json(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "acute": self.holds.tolist(),
            "largest_rates": self.largest_rates.tolist(),
            "batch_sizes": [size if math.isfinite(size) else None for size in self.batch_sizes.tolist()],
            "enough_at_half": self.batch_size_for(0.5),
            "enough_at_all": self.batch_size_for(),
        }

    def __str__(self) -> str:
        n, half, every = len(self.ahead), self.batch_size_for(0.5), self.batch_size_for()
        overshooting = int(np.isinf(self.batch_sizes).sum())
        text = [
            f"In expectation, a step of SGD with batches of {self.batch_size:,} is acute at {int(self.holds.sum())} of "
            f"{n} moments."
        ]
        if half is not None:
            text.append(f"Batches of {half:,} are enough at half of them{f', of {every:,} at all' if every else ''}.")
        if overshooting:
            text.append(
                f"No batch is enough at {overshooting} of them: even steps without noise overshoot at this rate."
            )
        if self.undecided.any():
            text.append(f'The sketch cannot tell at {int(self.undecided.sum())}. Use Recorder(…, storage="exact").')
        return " ".join(text)


def expected_acuteness(trace: Trace) -> ExpectedAcuteness:
    """Say for each moment whether the next step of SGD is acute in expectation, from a trace with batch statistics.

    θ* is the last moment. As in `acuteness`, the moment before it is left out: its epoch ends at θ*.

    Args:
        trace: recorded with `Recorder(…, draw=…)`, or with `record.noise_examples` in an experiment.

    Returns:
        E[uᵀq], the largest rates and the smallest batch sizes, one per moment.
    """
    check_kind("trace", trace, "batch_statistics", "a Trace, such as recorder.trace")
    if not trace.batch_statistics.size:
        raise InputError(HOW_TO_RECORD)
    check_length(trace)
    rows = trace.batch_statistics[:-2]
    if not np.isfinite(rows).all():
        raise InputError("The batch statistics contain non-finite values; use a run that did not diverge.")
    sgd = trace.facts["sgd"]
    gain = 1 + sgd["momentum"] if sgd["nesterov"] else 1.0  # a
    squared_gradient, noise, gradient_carry, squared_carry, gradient_ahead, carry_ahead = rows.T  # `BatchStatistics`
    squared = gain**2 * squared_gradient + 2 * gain * gradient_carry + squared_carry
    rate = trace.learning_rates[1:-1]  # recorded at the end of the epoch that begins at the moment
    lengths = np.sqrt(np.maximum(squared, 0.0)) * trace.parameter_distances[:-2, -1]
    return ExpectedAcuteness(
        ahead=gain * gradient_ahead + carry_ahead,
        squared=squared,
        noise=gain**2 * noise,
        rate=rate,
        batch_size=trace.facts["batch_size"],
        margin=STANDARD_ERRORS * trace.cosine_error * rate * lengths,
    )
