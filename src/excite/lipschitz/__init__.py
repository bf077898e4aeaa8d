"""How large is L: `estimate_lipschitz` reads it from a trace, `find_edge` from the largest convergent rate."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from excite.errors import InputError
from excite.lipschitz.curvature import estimate_from_curvatures
from excite.lipschitz.edge import find_edge
from excite.lipschitz.estimate import LipschitzEstimate
from excite.lipschitz.extremes.block_maxima import (
    Protocol,
    estimate_from_maxima,
    local_maxima,
    secant_maxima,
    unmatched_maxima,
)
from excite.lipschitz.slopes import local_slopes, secants
from excite.trace import Trace

__all__ = ["METHODS", "LipschitzEstimate", "estimate_lipschitz", "find_edge"]


def estimate_lipschitz(trace: Trace, method: str = "local", **options: Any) -> LipschitzEstimate:
    """L from a recorded run.

    "epochs" is Algorithm 1 as the paper has it, on secants between epochs; "local" is Algorithm 1 on the slopes of
    single steps. Both take M as `n_maxima`, N as `n_points` (one number or several to choose from), `initial_shapes`,
    `alpha`, `statistic`, `level`, `bootstraps`, `return_period` and `seed`; "epochs" also `protocol="authors"`.
    "curvature" takes `transient` and `quantile`. Same trace, same options: the same estimate, bit for bit.
    """
    if method not in METHODS:
        raise InputError(
            f'There is no method "{method}" for a trace; choose one of {", ".join(METHODS)}. '
            "The edge needs training runs instead of a trace: see find_edge."
        )
    return METHODS[method](trace, **options)


def _epochs(
    trace: Trace, *, n_points: int | Sequence[int] | None = None, protocol: Protocol = "paper", **options: Any
) -> LipschitzEstimate:
    moments = len(trace)
    if moments < 2:
        raise InputError(f"The trace holds {moments} moments; a secant needs 2. Call recorder.record() every epoch.")
    kind = trace.facts.get("gradient")
    if (protocol == "authors") != (kind == "input"):
        raise InputError(
            f'protocol="{protocol}" does not fit a trace of {kind} gradients: the released code\'s protocol uses '
            'gradient="input", the paper\'s text gradient="epoch_mean" or "probe".'
        )
    chosen = _several(n_points) or _fractions(moments, (0.5, 0.6, 0.75, 0.9, 1.0))
    if max(chosen) > moments:
        raise InputError(
            f"The trace holds {moments} moments; N={max(chosen)} needs at least {max(chosen)}. "
            f"Record longer or pass n_points={moments - moments % 2}."
        )
    slopes = secants(trace)
    draw = secant_maxima(slopes)
    if protocol == "authors":
        draw = unmatched_maxima(trace.gradient_distances, trace.parameter_distances)
    return estimate_from_maxima(
        draw,
        method="epochs" if protocol == "paper" else "epochs (authors' protocol)",
        largest_slope=float(slopes.max()),
        n_points=chosen,
        protocol=protocol,
        **_with_several_maxima(options),
    )


def _local(trace: Trace, *, n_points: int | Sequence[int] | None = None, **options: Any) -> LipschitzEstimate:
    slopes = local_slopes(trace)
    # A slope stands for two points. Blocks of a few per cent of the slopes: M of them are not all the same.
    chosen = _several(n_points) or _fractions(2 * len(slopes), (0.025, 0.035, 0.05, 0.07, 0.1))
    if max(chosen) > 2 * len(slopes):
        raise InputError(
            f"The trace holds {len(slopes)} local slopes; N={max(chosen)} needs {max(chosen) // 2}. "
            f"Record more slopes or pass n_points={2 * len(slopes)} or less."
        )
    return estimate_from_maxima(
        local_maxima(slopes),
        method="local",
        largest_slope=float(slopes.max()),
        n_points=chosen,
        **_with_several_maxima(options),
    )


METHODS: Mapping[str, Callable[..., LipschitzEstimate]] = {
    "epochs": _epochs,
    "local": _local,
    "curvature": estimate_from_curvatures,
}


def _several(value: int | Sequence[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _with_several_maxima(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"n_maxima": _several(options["n_maxima"])} if "n_maxima" in options else options


def _fractions(available: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Even numbers of points at these shares of those available (the paper's N at T = 164 are near 80 … 164)."""
    return tuple(sorted({max(2, 2 * int(share * available / 2)) for share in shares}))
