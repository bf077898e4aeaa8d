"""Algorithm 1 to the letter equals its twin, written from the paper's text alone, on a committed trace."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import fmin
from scipy.stats import kstest, weibull_min

from excite.lipschitz.algorithm_1 import PAPER_MAXIMA, PAPER_POINTS, PAPER_SHAPES, Epochs, secant_maxima, secants
from excite.trace import Trace

RUN = Path(__file__).parents[2] / "results/figures-5-6-small/figures-5-6-small"
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return Trace.load(RUN / "baseline/trace.safetensors")


def twin(trace: Trace, m: int, n: int, shapes: tuple[float, ...]) -> list[tuple[float, float]]:
    """Lines 1 to 8 of Algorithm 1 in the paper's appendix: (p-value, scale) for each initial shape."""
    answers = []
    with np.errstate(invalid="ignore"):
        slopes = trace.gradient_distances / trace.parameter_distances
    for index, initial_shape in enumerate(shapes):
        rng = np.random.default_rng((0, m, n, index))
        order = rng.permuted(np.tile(np.arange(len(trace)), (m, 1)), axis=1)  # the only line that it shares with ours
        maxima = [slopes[points[0:n:2], points[1:n:2]].max() for points in order]
        mirrored = -np.array(maxima)  # a reverse Weibull is a Weibull, mirrored
        with np.errstate(all="ignore"):
            shape, location, scale = weibull_min.fit(mirrored, initial_shape, optimizer=fmin)
            p_value = kstest(mirrored, weibull_min(shape, location, scale).cdf).pvalue
        answers.append((p_value, scale))
    return answers


@pytest.mark.filterwarnings("ignore:Maximum number of")
@pytest.mark.parametrize("shapes", [PAPER_SHAPES[:1], pytest.param(PAPER_SHAPES, marks=pytest.mark.slow)])
def test_every_cell_equals_the_twin(trace: Trace, shapes: tuple[float, ...]) -> None:
    draw = secant_maxima(secants(trace))
    cells = Epochs(protocol="text", initial_shapes=shapes).heat_map(draw, PAPER_POINTS)
    assert cells.constants.shape == (5, 5, len(shapes))
    for row, m in enumerate(PAPER_MAXIMA):
        for column, n in enumerate(PAPER_POINTS):
            p_values, scales = np.array(twin(trace, m, n, shapes)).T
            np.testing.assert_allclose(cells.p_values[row, column], p_values, rtol=1e-9, atol=1e-300)
            np.testing.assert_allclose(cells.constants[row, column], scales, rtol=1e-9)
    # As in the paper's Figure 6: from an initial shape of 0.1 the optimizer never fits the maxima.
    assert (cells.p_values[:, :, 0] < 0.001).all()


def test_l_is_the_scale_that_goes_with_the_largest_p_value(trace: Trace) -> None:
    estimate = Epochs(protocol="text", n_maxima=25, n_points=80, bootstraps=0)(trace)
    p_value, scale = max(twin(trace, 25, 80, PAPER_SHAPES))
    assert (estimate.p_value, estimate.constant) == pytest.approx((p_value, scale), rel=1e-9)
    assert not estimate.identified


def test_the_proper_fit_gives_a_bound_to_train_at_and_says_that_no_endpoint_is_identified(trace: Trace) -> None:
    estimate = Epochs(protocol="fitted", n_maxima=200, n_points=100, bootstraps=0)(trace)
    assert not estimate.identified
    assert estimate.reliable
    assert estimate.constant >= secants(trace).max()
    assert "bound" in str(estimate)
    assert not Epochs(protocol="text", n_maxima=25, n_points=80, initial_shapes=(5.0,), bootstraps=0)(trace).reliable
