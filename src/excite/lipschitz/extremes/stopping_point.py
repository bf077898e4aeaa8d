"""Where Nelder-Mead stops when it fits three Weibull parameters at once: the number that the paper's way gives.

Where the likelihood rises forever towards the Gumbel limit, endpoint and scale grow together without end, and the
place where the optimiser gives up depends on where it began. It is no estimate, and is never passed off as one.
"""

import warnings
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class StoppingPoint:
    """The reverse Weibull at which the optimiser stopped, and its Kolmogorov-Smirnov p-value."""

    initial_shape: float
    shape: float
    endpoint: float
    scale: float
    p_value: float

    @property
    def finite(self) -> bool:
        return bool(np.isfinite([self.endpoint, self.scale]).all() and self.scale > 0)

    def to_json(self) -> dict[str, float | None]:
        return {name: value if np.isfinite(value) else None for name, value in asdict(self).items()}


def stopping_point(maxima: NDArray[np.float64], initial_shape: float) -> StoppingPoint:
    """scipy's three-parameter fit of `maxima` by Nelder-Mead from `initial_shape`, wherever it stops."""
    from scipy.optimize import fmin
    from scipy.stats import FitError, kstest, weibull_min

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            shape, location, scale = weibull_min.fit(-maxima, initial_shape, optimizer=fmin)
        except FitError:  # it stopped where there is no such law
            return StoppingPoint(initial_shape, *(np.nan,) * 3, p_value=0.0)
        p_value = float(kstest(-maxima, "weibull_min", args=(shape, location, scale)).pvalue)
    return StoppingPoint(
        initial_shape, float(shape), float(-location), float(scale), p_value if np.isfinite(p_value) else 0.0
    )
