"""How large is L: one estimator per file; `estimate_lipschitz` looks one up and hands it its evidence."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from excite.errors import InputError
from excite.lazy import lazily
from excite.lipschitz.curvature import PathCurvature
from excite.lipschitz.edge import Edge, find_edge
from excite.lipschitz.epochs import Epochs
from excite.lipschitz.local import Local
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Recording, ShortTrainings
from excite.lipschitz.stated import Stated
from excite.registry import build
from excite.trace import Trace

if TYPE_CHECKING:
    from excite.lipschitz.online import OnlineRate

__all__ = [
    "ESTIMATORS",
    "Edge",
    "Epochs",
    "Estimator",
    "LipschitzEstimate",
    "Local",
    "OnlineRate",
    "PathCurvature",
    "Recording",
    "ShortTrainings",
    "Stated",
    "estimate_lipschitz",
    "estimator",
    "find_edge",
]

__getattr__ = lazily(__name__, {"OnlineRate": "online"})

ESTIMATORS: dict[str, type[Estimator[Any]]] = {
    "edge": Edge,
    "epochs": Epochs,
    "local": Local,
    "curvature": PathCurvature,
    "stated": Stated,
}


def estimator(method: str, **options: Any) -> Estimator[Any]:
    """The estimator of this name with these options; a wrong name or option is an InputError with the nearest one."""
    return build("estimator", ESTIMATORS, method, options)


def estimate_lipschitz(
    evidence: Trace | ShortTrainings | None, method: str = "local", **options: Any
) -> LipschitzEstimate:
    """L from a recorded run (or from short trainings, for the estimators that need them).

    "epochs" is Algorithm 1 as the paper has it, on secants between epochs; "local" is Algorithm 1 on the slopes of
    single steps. Both take M as `n_maxima`, N as `n_points` (one number or several to choose from), `initial_shapes`,
    `alpha`, `statistic`, `level`, `bootstraps`, `return_period` and `seed`; "epochs" also `protocol="authors"`.
    "curvature" takes `transient` and `quantile`, "stated" the `constant` itself. "edge" takes `ShortTrainings`
    instead of a trace. Same evidence, same options: the same estimate, bit for bit.

    Args:
        evidence: `recorder.trace`, or what the estimator needs instead.
        method: a key of `ESTIMATORS`.
        options: the estimator's own, checked.

    Returns:
        L with its interval, and whether to trust it.

    >>> print(estimate_lipschitz(None, "stated", constant=4.0).learning_rate(2))
    0.5
    """
    chosen = estimator(method, **options)
    fits = {"trace": Trace, "short trainings": ShortTrainings, "nothing": object}[chosen.needs]
    if not isinstance(evidence, fits):
        raise InputError(
            f'The estimator "{method}" needs {_CURES[chosen.needs]}, not {type(evidence).__name__}. Estimators that '
            f"read a trace: {', '.join(name for name, kind in ESTIMATORS.items() if kind.needs == 'trace')}."
        )
    estimate = chosen(evidence)
    problems = evidence.facts.get("problems", ()) if isinstance(evidence, Trace) else ()
    return replace(estimate, basis=". ".join([estimate.basis, *(text.removesuffix(".") for text in problems)]))


_CURES = {
    "trace": "a Trace (recorder.trace)",
    "short trainings": "ShortTrainings (or call find_edge with a function that trains)",
    "nothing": "nothing",
}
