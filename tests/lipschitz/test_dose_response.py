import math

import numpy as np
import pytest

from excite.lipschitz.dose_response import DoseResponse, _verdict


def simulate(threshold: float, slope: float, rng: np.random.Generator, runs: int = 12) -> DoseResponse:
    """The sequential search on a known curve."""
    rates: list[float] = []
    survived: list[bool] = []
    for _ in range(runs):
        rate = DoseResponse(0.1, rates, survived).most_informative_rate()
        survived.append(bool(rng.random() < 1 / (1 + (rate / threshold) ** (1 / slope))))
        rates.append(rate)
    return DoseResponse(0.1, rates, survived)


@pytest.fixture(scope="module")
def known_curve() -> DoseResponse:
    """After 100 verdicts on a curve with threshold 1 and slope 0.1."""
    return simulate(1.0, 0.1, np.random.default_rng(0), runs=100)


@pytest.mark.slow
@pytest.mark.parametrize(("slope", "width"), [(0.02, 1.6), (0.1, 2.0), (0.2, 2.7)])
def test_the_interval_covers_the_truth_as_often_as_it_says(slope: float, width: float) -> None:
    """12 verdicts each on 40 curves: of 95% intervals fewer than 34 of 40 would cover in one test of three hundred."""
    rng = np.random.default_rng(0)
    truths = 0.1 * np.exp(rng.uniform(-3, 3, 40))
    found = [simulate(truth, slope, rng) for truth in truths]
    intervals = [curve.interval() for curve in found]
    assert sum(low <= truth <= high for truth, (low, high) in zip(truths, intervals, strict=True)) >= 34
    assert np.median([high / low for low, high in intervals]) < width
    errors = [math.log(curve.threshold() / truth) for curve, truth in zip(found, truths, strict=True)]
    assert abs(np.mean(errors)) < 0.08  # no side is preferred


def test_the_prior_is_as_wide_as_it_says() -> None:
    """The threshold is within a factor 4 in half of all cases; from 50% to 90% a factor 1.16 to 1.4 in two of three."""
    assert [DoseResponse(1.0).threshold(quantile) for quantile in (0.25, 0.75)] == pytest.approx([1 / 4, 4], rel=0.02)
    known = DoseResponse(1.0, reach=1e-3)
    ratios = [known.threshold() / known.rate_for(0.9, quantile) for quantile in (5 / 6, 0.5, 1 / 6)]
    assert ratios == pytest.approx([1.16, 1.25, 1.4], rel=0.05)


def test_one_verdict_in_a_hundred_is_wrong_at_any_rate() -> None:
    assert _verdict(np.array([-100.0, 0.0, 100.0])).tolist() == pytest.approx([0.01, 0.5, 0.99])


def test_it_looks_at_the_start_first_and_leaps_by_about_four() -> None:
    assert DoseResponse(0.1).most_informative_rate() == pytest.approx(0.1, rel=0.05)
    assert 0.3 < DoseResponse(0.1, [0.1], [True]).most_informative_rate() < 0.6
    assert 0.1 / 6 < DoseResponse(0.1, [0.1], [False]).most_informative_rate() < 0.1 / 3


def test_verdicts_shift_the_threshold_their_way() -> None:
    rates = [0.1, 0.4, 1.6]
    before = DoseResponse(0.1, rates, [True, True, False])
    assert DoseResponse(0.1, [*rates, 0.8], [True, True, False, True]).threshold() > before.threshold()
    assert DoseResponse(0.1, [*rates, 0.8], [True, True, False, False]).threshold() < before.threshold()


def test_one_odd_verdict_does_not_overturn_many() -> None:
    rates = [0.1, 0.2, 0.3, 0.4, 0.4, 0.8, 0.8, 1.6]
    verdicts = [True, True, True, True, True, False, False, False]
    steady = DoseResponse(0.1, rates, verdicts).threshold()
    odd = DoseResponse(0.1, [*rates, 0.05], [*verdicts, False]).threshold()
    assert odd == pytest.approx(steady, rel=0.15)


def test_survival_falls_from_one_to_zero_through_a_half_at_the_threshold() -> None:
    curve = DoseResponse(0.1, [0.1, 0.4, 1.6, 0.8, 0.5], [True, True, False, False, True])
    low, middle, high = curve.survival([0.02, curve.threshold(), 20.0])
    assert low > 0.95
    assert middle == pytest.approx(0.5, abs=0.1)
    assert high < 0.05


def test_the_rate_for_a_share_of_trainings_on_a_curve_that_is_known(known_curve: DoseResponse) -> None:
    curve = known_curve
    assert curve.rate_for(0.95) == pytest.approx(19**-0.1, rel=0.15)
    assert curve.survival([curve.rate_for(0.95)]) == [pytest.approx(0.95, abs=0.02)]
    assert curve.rate_for(0.95, 0.05) < curve.rate_for(0.95) < curve.rate_for(0.95, 0.95)


def test_trainings_longer_than_the_runs_may_have_a_lower_threshold(known_curve: DoseResponse) -> None:
    curve = known_curve
    low, middle = (curve.rate_for(0.5, quantile, longer=8) for quantile in (0.05, 0.5))
    assert middle == pytest.approx(curve.threshold(), rel=0.05)
    assert low == pytest.approx(8 ** (-1.645 * 0.2), rel=0.15)
    assert curve.rate_for(0.5, 0.95, longer=8) == pytest.approx(curve.threshold(0.95), rel=0.05)  # never higher, unless
    assert curve.rate_for(0.5, 0.95, longer=8, rising=True) == pytest.approx(8 ** (1.645 * 0.2), rel=0.15)
    assert curve.survival([0.6], longer=8)[0] < curve.survival([0.6])[0]


def test_a_narrow_prior_starts_near_the_threshold_of_shorter_runs_and_can_leave_it() -> None:
    near, wide = DoseResponse(1.0, reach=0.5), DoseResponse(1.0)
    assert near.threshold(0.95) < wide.threshold(0.95)
    rates = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert DoseResponse(1.0, rates, [True] * 4 + [False] * 2, reach=0.5).threshold() == pytest.approx(4.5, rel=0.1)


def test_after_many_runs_the_curve_goes_on_beyond_all_likely_thresholds() -> None:
    curve = simulate(1.0, 0.4, np.random.default_rng(0), runs=60)
    nearly_all, nearly_none = curve.survival([curve.threshold() / 300, curve.threshold() * 300])
    assert nearly_all > 0.995
    assert nearly_none < 0.005
