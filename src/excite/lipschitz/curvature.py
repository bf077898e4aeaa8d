"""L is the largest curvature along the path, once the initial transient is over."""

import math

import numpy as np

from excite.errors import InputError
from excite.lipschitz.estimate import LipschitzEstimate
from excite.trace import Trace


def estimate_from_curvatures(trace: Trace, *, transient: float = 0.2, quantile: float = 1.0) -> LipschitzEstimate:
    """The `quantile` (1: the largest) of the curvatures measured after the first `transient` share of the steps.

    A curvature is the largest |eigenvalue| of the loss Hessian on the recorder's probe, in train mode. The interval
    goes from the smallest to the largest of them along the rest of the path, widened by their residual bounds.
    """
    usable = np.isfinite(trace.curvatures) & (trace.curvatures > 0)
    if not usable.any():
        raise InputError("The trace holds no curvatures. Record with probe=(x, y) and curvature_every=1 or more.")
    late = trace.curvature_steps >= transient * trace.steps.max(initial=0)
    kept = usable & late if (usable & late).any() else usable
    values, residuals = trace.curvatures[kept], trace.curvature_residuals[kept]
    constant = float(np.quantile(values, quantile))
    low, high = float((values - residuals).min()), float((values + residuals).max())
    settled = bool((residuals <= 0.1 * values).all())
    which = "largest" if quantile == 1 else f"{quantile:.0%} quantile"
    basis = (
        f"{which} of {len(values)} Hessian norms on {trace.facts.get('probe', 'the')} probe examples, after the first "
        f"{transient:.0%} of the steps; interval = their range along the path"
    )
    details = {
        "curvatures": values.tolist(),
        "residuals": residuals.tolist(),
        "steps": trace.curvature_steps[kept].tolist(),
        "median": float(np.median(values)),
        "transient": transient,
    }
    if not settled:
        basis += "; Lanczos had not settled (raise curvature_iterations)"
    return LipschitzEstimate(constant, (max(low, math.ulp(0)), high), "curvature", settled, basis, None, details)
