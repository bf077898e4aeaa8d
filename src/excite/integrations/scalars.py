"""What there is to log of a training, as plain numbers under names that every logger takes."""

import math

import numpy as np

from excite.excitation import certify
from excite.lipschitz import LipschitzEstimate
from excite.registry import named_options
from excite.trace import Trace

__all__ = ["of_estimate", "of_trace"]


@named_options
def of_estimate(estimate: LipschitzEstimate) -> dict[str, float]:
    """L, its interval, and the rates it gives."""
    low, high = estimate.interval
    return {
        "excite/L": estimate.constant,
        "excite/L_low": low,
        "excite/L_high": high,
        "excite/rate_1_over_L": estimate.learning_rate(),
        "excite/rate_2_over_L": estimate.learning_rate(2),
    }


@named_options
def of_trace(trace: Trace) -> dict[str, float]:
    """The last local slope and, from the third moment on, the shares of acute and of certified steps so far.

    θ* is the last moment there is, so the shares change from epoch to epoch and mean most at the end. A training that
    has diverged has none, and is not stopped by that.
    """
    found: dict[str, float] = {}
    if len(trace.slopes):
        found["excite/local_slope"] = float(trace.slopes[-1])
    if len(trace) >= 3 and np.isfinite(trace.squared_parameter_distances).all():
        path = certify(trace)
        found["excite/acuteness"] = path.angles.fraction
        found["excite/certified"] = float(path.certified.mean())
    return {name: value for name, value in found.items() if math.isfinite(value)}
