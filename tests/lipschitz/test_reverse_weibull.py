"""The fit gives endpoints back, says when there is none to give, and never stumbles."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.stats import weibull_min

from excite.errors import InputError
from excite.lipschitz.reverse_weibull import ReverseWeibullFit, fit_reverse_weibull, stopping_point

Floats = NDArray[np.float64]


def fit_one(sample: Floats, **options: Any) -> ReverseWeibullFit:
    return fit_reverse_weibull(sample[None], **options)[0]


def reverse_weibulls(
    rng: np.random.Generator, shapes: Floats, size: int, *, endpoint: float = 5.0, scale: float = 2.0
) -> Floats:
    sample: Floats = endpoint - scale * rng.standard_exponential((len(shapes), size)) ** (1 / shapes[:, None])
    return sample


def test_the_interval_covers_the_endpoint_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    fits = fit_reverse_weibull(reverse_weibulls(rng, rng.uniform(2, 6, 500), 200))
    covered = np.mean([fit.interval[0] <= 5 <= fit.interval[1] for fit in fits])
    assert 0.92 <= covered <= 0.98


def test_gumbel_samples_are_reported_as_not_identified() -> None:
    fits = fit_reverse_weibull(np.random.default_rng(2).gumbel(size=(500, 200)))
    assert np.mean([not fit.identified for fit in fits]) >= 0.9
    for fit in fits:
        assert fit.identified == (math.isfinite(fit.interval[1]) and fit.endpoint is not None)
    levels = [fit.return_level for fit in fits if fit.return_level is not None]
    assert np.median(levels) == pytest.approx(-math.log(-math.log(1 - 1 / 1000)), rel=0.03)


def test_clear_endpoints_are_identified_and_given_back() -> None:
    rng = np.random.default_rng(3)
    fits = fit_reverse_weibull(reverse_weibulls(rng, np.full(20, 2.5), 2000))
    for fit in fits:
        assert fit.identified
        assert fit.endpoint == pytest.approx(5, abs=0.15)
        assert fit.shape == pytest.approx(2.5, rel=0.2)
        assert fit.scale == pytest.approx(2, rel=0.1)


def log_likelihood(sample: Floats, fit: ReverseWeibullFit) -> float:
    assert fit.endpoint is not None
    assert fit.scale is not None
    assert fit.shape is not None
    y = (fit.endpoint - sample) / fit.scale
    return float((np.log(fit.shape / fit.scale) + (fit.shape - 1) * np.log(y) - y**fit.shape).sum())


def test_it_is_the_maximum_that_a_general_optimiser_finds() -> None:
    from scipy.optimize import minimize

    rng = np.random.default_rng(4)
    for sample in reverse_weibulls(rng, rng.uniform(2, 4, 5), 300):
        fit = fit_one(sample)
        assert fit.endpoint is not None
        assert fit.scale is not None
        assert fit.shape is not None
        start = (fit.endpoint + 0.1, math.log(fit.scale), math.log(fit.shape))

        def negative(values: Floats, sample: Floats = sample) -> float:
            if values[0] <= sample.max():
                return math.inf
            k, z = math.exp(values[2]), np.log(values[0] - sample) - values[1]
            return -float((values[2] - values[1] + (k - 1) * z - np.exp(k * z)).sum())

        options = {"maxiter": 5000, "xatol": 1e-9, "fatol": 1e-11}
        best = minimize(negative, start, method="Nelder-Mead", options=options)
        assert fit.endpoint == pytest.approx(best.x[0], rel=1e-5)
        assert log_likelihood(sample, fit) == pytest.approx(-best.fun, abs=1e-6)


def test_fits_move_and_scale_with_the_sample() -> None:
    sample = reverse_weibulls(np.random.default_rng(5), np.array([3.0]), 100)[0]
    plain = fit_one(sample)
    for factor in (1e-12, 1e12):
        moved = fit_one(factor * sample)
        assert moved.endpoint == pytest.approx(factor * (plain.endpoint or 0), rel=1e-5)
        assert moved.shape == pytest.approx(plain.shape, rel=1e-3)
        assert moved.ks_p_value == pytest.approx(plain.ks_p_value, rel=1e-3)


def test_the_ks_p_value_is_scipy_s_and_the_bootstrap_s_is_valid() -> None:
    from scipy.stats import kstest

    rng = np.random.default_rng(6)
    samples = reverse_weibulls(rng, np.full(40, 3.0), 100)
    fits = fit_reverse_weibull(samples, bootstraps=99)
    for sample, fit in zip(samples, fits, strict=True):
        if fit.endpoint is not None:
            args = (fit.shape, -fit.endpoint, fit.scale)
            assert fit.ks_p_value == pytest.approx(kstest(-sample, weibull_min.cdf, args=args).pvalue, rel=1e-6)
    ks = np.array([fit.ks_p_value for fit in fits], dtype=float)
    bootstrap = np.array([fit.bootstrap_p_value for fit in fits], dtype=float)
    assert np.median(ks) > 0.8  # fitted parameters flatter themselves
    assert 0.3 < np.median(bootstrap) < 0.7  # uniform under the truth
    assert fit_one(rng.choice([1.0, 2.0], 100), bootstraps=199).bootstrap_p_value == 0.01 / 2


def test_initial_shapes_lead_uphill_to_a_maximum() -> None:
    sample = reverse_weibulls(np.random.default_rng(7), np.array([3.0]), 200)[0]
    best = fit_one(sample)
    for shape in (0.1, 2.0, 5.0, 20.0, 100.0):
        assert fit_one(sample, initial_shapes=np.array([shape])).endpoint == best.endpoint


def test_where_there_are_two_maxima_the_initial_shape_decides_and_the_fit_without_one_takes_the_higher() -> None:
    sample = np.random.default_rng(3).random(12)
    low, high = (fit_one(sample, initial_shapes=np.array([shape])) for shape in (0.1, 100.0))
    assert (low.endpoint, low.shape) == (sample.max(), 1.0)
    assert high.shape is not None
    assert high.shape > 2
    assert log_likelihood(sample, high) > -len(sample) * (1 + math.log((sample.max() - sample).mean()))
    assert fit_one(sample).endpoint == high.endpoint


def test_a_maximum_that_is_not_the_highest_identifies_nothing() -> None:
    for seed in range(40):
        sample = np.random.default_rng(seed).random(25)
        for shape in (0.1, 1.0, 5.0, 50.0):
            fit = fit_one(sample, initial_shapes=np.array([shape]))
            if fit.identified:
                assert fit.endpoint is not None
                assert fit.interval[0] <= fit.endpoint <= fit.interval[1]


def test_samples_that_pile_up_at_the_largest_do_not_identify_an_endpoint() -> None:
    sample = np.concatenate([np.full(30, 1.0), np.linspace(0, 1, 30)])
    fit = fit_one(sample)
    assert not fit.identified
    assert "pile up" in str(fit)


def test_a_constant_sample_gets_a_clear_answer() -> None:
    for value in (0.0, 1.0, 1e-300, 1e300):
        fit = fit_one(np.full(10, value))
        assert not fit.identified
        assert (fit.endpoint, fit.scale, fit.shape, fit.return_level) == (None, None, None, None)
        assert fit.largest == value
        assert "constant sample" in str(fit)


def test_a_sample_too_small_or_broken_is_refused() -> None:
    with pytest.raises(InputError, match="M = 3 or more"):
        fit_one(np.array([1.0, 2.0]))
    with pytest.raises(InputError, match="NaN"):
        fit_one(np.array([1.0, 2.0, np.nan]))


def test_same_seed_same_fit() -> None:
    sample = np.random.default_rng(8).random(50)
    assert fit_one(sample, bootstraps=19, seed=3) == fit_one(sample, bootstraps=19, seed=3)


def awkward_samples() -> st.SearchStrategy[Floats]:
    sizes = st.integers(3, 30)
    tied = hnp.arrays(np.float64, sizes, elements=st.sampled_from([0.0, 1.0, 2.0, 2.0 + 1e-15]))
    plain = hnp.arrays(np.float64, sizes, elements=st.floats(0, 1e3, allow_subnormal=True))
    huge = hnp.arrays(np.float64, sizes, elements=st.floats(0, 1e300))
    tiny = hnp.arrays(np.float64, sizes, elements=st.floats(0, 1e-290, allow_subnormal=True))
    steps = hnp.arrays(np.float64, sizes, elements=st.integers(0, 3).map(lambda n: 1 + n * 2.0**-52))
    three = hnp.arrays(np.float64, 3, elements=st.floats(0, 10))
    return st.one_of(tied, plain, huge, tiny, steps, three)


def check(sample: Floats) -> None:
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        fit = fit_one(sample)
    low, high = fit.interval
    assert fit.largest == sample.max() <= low <= high
    assert fit.ks_p_value is None or 0 <= fit.ks_p_value <= 1
    assert all(
        value is None or math.isfinite(value) for value in (fit.endpoint, fit.scale, fit.shape, fit.return_level)
    )
    assert fit.endpoint is None or low <= fit.endpoint <= high
    assert fit.return_level is None or fit.return_level >= fit.largest
    if fit.identified:
        assert fit.endpoint is not None
        assert math.isfinite(high)


@settings(max_examples=50)
@given(awkward_samples())
@example(np.array([5e-324, 5e-324, 0.0, 0.0]))
def test_degenerate_samples_raise_no_errors_or_warnings(sample: Floats) -> None:
    check(sample)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(awkward_samples())
def test_ten_thousand_degenerate_samples_raise_no_errors_or_warnings(sample: Floats) -> None:
    check(sample)


def test_the_papers_optimizer_finds_the_parameters_of_a_sampled_law() -> None:
    maxima = -weibull_min.rvs(3.0, loc=-8.0, scale=2.0, size=4000, random_state=0)
    found = stopping_point(maxima, 2.0)
    assert found.endpoint == pytest.approx(8, rel=0.05)
    assert found.scale == pytest.approx(2, rel=0.15)
    assert found.shape == pytest.approx(3, rel=0.15)
    assert found.p_value > 0.05


def test_without_an_endpoint_the_result_depends_on_the_start() -> None:
    maxima = np.random.default_rng(0).gumbel(size=200)
    scales = [stopping_point(maxima, start).scale for start in (5.0, 20.0, 100.0)]
    assert max(scales) > 2 * min(scales)
    assert json.dumps(stopping_point(maxima, 5.0).to_json(), allow_nan=False)


def test_optimizer_without_a_stopping_point() -> None:
    stopped = stopping_point(np.random.default_rng(0).gumbel(size=40), 0.004)
    assert not stopped.finite
    assert stopped.p_value == 0
