"""Estimators of L, one per file; `estimate_lipschitz` calls one by name."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from excite.errors import InputError
from excite.lazy import lazily
from excite.lipschitz.algorithm_1 import Epochs, Local
from excite.lipschitz.curvature import PathCurvature
from excite.lipschitz.edge import Edge, find_edge
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Recording, ShortTrainings
from excite.lipschitz.stated import Stated
from excite.registry import build
from excite.trace import Trace

if TYPE_CHECKING:
    from excite.lipschitz.online import OnlineRate

__all__ = ["ESTIMATORS", "Edge", "Epochs", "Estimator", "LipschitzEstimate", "Local", "OnlineRate", "PathCurvature"]
__all__ += ["Recording", "ShortTrainings", "Stated", "estimate_lipschitz", "estimator", "find_edge"]

__getattr__ = lazily(__name__, {"OnlineRate": "online"})

ESTIMATORS: dict[str, type[Estimator[Any]]] = {
    "edge": Edge,
    "epochs": Epochs,
    "local": Local,
    "curvature": PathCurvature,
    "stated": Stated,
}


def estimator(method: str, **options: Any) -> Estimator[Any]:
    """The estimator of this name with these options; InputError suggests the nearest name or option."""
    return build("estimator", ESTIMATORS, method, options)


def estimate_lipschitz(
    evidence: Trace | ShortTrainings | None, method: str = "local", **options: Any
) -> LipschitzEstimate:
    """Estimate L from a recorded run, or from short trainings.

    "epochs" is the paper's Algorithm 1, on secants between epochs; "local" is Algorithm 1 on the slopes of single
    steps. Both have the options `n_maxima` (M) and `n_points` (N), one number or several to choose from,
    `initial_shapes`, `alpha`, `bootstraps` and `seed`; "epochs" also has `protocol`: "fitted", "text" or "authors".
    "curvature" has `transient`, "stated" has `constant`. "edge" needs `ShortTrainings` instead of a
    trace. The same evidence and options give the same estimate, bit for bit.

    Args:
        evidence: `recorder.trace`, or what else the estimator needs.
        method: a key of `ESTIMATORS`.
        options: options of the estimator.

    Returns:
        L, its interval, and whether the data identify it.

    >>> print(estimate_lipschitz(None, "stated", constant=4.0).learning_rate(2))
    0.5
    """
    chosen = estimator(method, **options)
    wanted = {"trace": Trace, "short trainings": ShortTrainings, "nothing": object}[chosen.needs]
    if not isinstance(evidence, wanted):
        raise InputError(
            f'The estimator "{method}" needs a {wanted.__name__}, not {type(evidence).__name__}. Estimators that use a '
            f"trace: {', '.join(name for name, kind in ESTIMATORS.items() if kind.needs == 'trace')}."
        )
    estimate = chosen(evidence)
    problems = evidence.facts.get("problems", ()) if isinstance(evidence, Trace) else ()
    return replace(estimate, basis=". ".join([estimate.basis, *(text.removesuffix(".") for text in problems)]))
