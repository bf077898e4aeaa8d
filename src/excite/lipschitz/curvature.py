"""L is the largest curvature along the path of a run, after the initial transient."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from excite.errors import InputError
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Needs, Recording
from excite.trace import Trace


@dataclass(frozen=True, kw_only=True)
class PathCurvature(Estimator[Trace]):
    """The largest of the curvatures measured after the first `transient` share of the steps.

    A curvature is the largest absolute eigenvalue of the Hessian of the loss on the recorder's probe, in train mode.
    The interval is the range of these curvatures, widened by the bounds on their errors.
    """

    title: ClassVar[str] = "curvature (Hessian norm)"
    about: ClassVar[str] = "The largest curvature of the loss on a fixed probe, along the baseline's path."
    needs: ClassVar[Needs] = "trace"

    transient: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.transient < 1:
            raise InputError(f"transient is {self.transient}; it must be at least 0 and below 1.")

    def check(self, recording: Recording) -> None:
        if recording.curvatures == 0:
            raise InputError(f"{recording.says} no curvatures. Record with probe=(x, y) and curvature_every=1 or more.")

    def __call__(self, evidence: Trace) -> LipschitzEstimate:
        self.check(Recording.of(evidence))
        usable = np.isfinite(evidence.curvatures) & (evidence.curvatures > 0)
        late = evidence.curvature_steps >= self.transient * evidence.steps.max(initial=0)
        has_late = bool((usable & late).any())
        kept = usable & late if has_late else usable
        values, residuals = evidence.curvatures[kept], evidence.curvature_residuals[kept]
        constant = float(values.max())
        low, high = float((values - residuals).min()), float((values + residuals).max())
        accurate = bool((residuals <= 0.1 * values).all())
        basis = (
            f"largest of {len(values)} Hessian norms on {evidence.facts.get('probe', 'the')} probe examples, "
            f"{'after' if has_late else 'all within'} the first {self.transient:.0%} of the steps"
            f"{'' if has_late else ', because no later one is positive and finite'}; "
            "interval = their range along the path"
        )
        details = {
            "curvatures": values.tolist(),
            "residuals": residuals.tolist(),
            "steps": evidence.curvature_steps[kept].tolist(),
            "median": float(np.median(values)),
            "transient": self.transient,
        }
        if not accurate:
            basis += "; the Lanczos iteration did not converge (increase curvature_iterations)"
        return LipschitzEstimate(
            constant, (max(low, 0.0), high), "curvature", accurate and has_late, basis, None, details
        )
