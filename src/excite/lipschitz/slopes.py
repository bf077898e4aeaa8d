"""Slopes of the gradient along a run: how much it changed over how far the parameters moved."""

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.trace import Trace

Floats = NDArray[np.float64]


def secants(trace: Trace) -> Floats:
    """‖∇l(θ_i) − ∇l(θ_j)‖ / ‖θ_i − θ_j‖ for every two moments, T×T; 0 where the parameters did not move."""
    rise, run = trace.gradient_distances, trace.parameter_distances
    finite = np.isfinite(rise) & np.isfinite(run) & (run > 0)
    return np.divide(rise, run, out=np.zeros_like(rise), where=finite)


def local_slopes(trace: Trace) -> Floats:
    """The slopes of single steps, ‖g_B(θᵏ⁺¹) − g_B(θᵏ)‖ / ‖θᵏ⁺¹ − θᵏ‖, each of one batch's loss."""
    if len(trace.slopes) == 0:
        raise InputError(
            "The trace holds no local slopes. Call recorder.after_step(closure) after each step; if you did, the "
            "steps were too small to change the gradient: record at a larger learning rate."
        )
    return trace.slopes
