"""Algorithm 1 on slopes whose bound is known: its blocks, its heat map, its heuristic and its answer."""

import json
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import fmin
from scipy.stats import weibull_min

from excite.errors import InputError
from excite.lipschitz.algorithm_1 import (
    Draw,
    Epochs,
    HeatMap,
    local_maxima,
    secant_maxima,
    unmatched_maxima,
)
from excite.lipschitz.protocol import LipschitzEstimate

Floats = NDArray[np.float64]


def distances(seed: int, n: int = 30) -> Floats:
    points = np.random.default_rng(seed).normal(size=(n, 4))
    return np.asarray(np.linalg.norm(points[:, None] - points, axis=-1))


def estimate_from(
    draw: Draw,
    *,
    largest_slope: float,
    n_points: tuple[int, ...],
    protocol: Literal["text", "fitted", "authors"] = "fitted",
    **options: Any,
) -> LipschitzEstimate:
    estimator = Epochs(n_points=n_points, protocol=protocol, **options)
    return estimator.estimate(draw, method="epochs", largest_slope=largest_slope, n_points=n_points)


def heat_map(draw: Draw, n_points: tuple[int, ...], **options: Any) -> HeatMap:
    return Epochs(**options).heat_map(draw, n_points)


def estimate(seed: int = 0, **options: Any) -> LipschitzEstimate:
    slopes = distances(5, 60)
    settings: dict[str, Any] = {"n_maxima": (25, 55, 200), "n_points": (10, 20, 40), "bootstraps": 49} | options
    return estimate_from(secant_maxima(slopes), largest_slope=float(slopes.max()), seed=seed, **settings)


def test_an_estimate_lists_its_pairs_and_their_spread_and_prints_them() -> None:
    found = estimate()
    details = found.details
    constants = [pair["constant"] for pair in details["pairs"]]
    assert details["spread"] == [min(constants), max(constants)]
    cells = details["heat_map"]
    mixed = [
        (m, n)
        for m, row in zip(cells["n_maxima"], cells["p_values"], strict=True)
        for n, values in zip(cells["n_points"], row, strict=True)
        if min(values) < 0.55 < max(values)
    ]
    assert details["pairs_pass"] == bool(mixed)
    if mixed:
        assert [(pair["M"], pair["N"]) for pair in details["pairs"]] == mixed
    assert f"{len(mixed)} of 9 (M, N) pass" in str(found)
    assert "ten redraws" in str(found)
    assert len(details["redraws"]) == 10
    assert json.dumps(found.to_json(), allow_nan=False)


def test_same_seed_same_estimate_and_other_seeds_differ() -> None:
    assert estimate(3) == estimate(3)
    assert estimate(3) != estimate(4)


@pytest.mark.parametrize("seed", range(5))
def test_l_is_never_below_the_largest_slope(seed: int) -> None:
    slopes = distances(seed, 40)
    for points in (2, 8, 40):
        found = estimate_from(
            secant_maxima(slopes),
            largest_slope=float(slopes.max()),
            n_maxima=(60,),
            n_points=(points,),
            initial_shapes=(1.0,),
            bootstraps=0,
        )
        assert found.interval[0] >= slopes.max()
        assert found.constant >= slopes.max()
        assert found.interval[0] <= found.constant <= found.interval[1]


def test_gumbel_like_maxima_fall_back_to_the_return_level_and_say_so() -> None:
    slopes = np.exp(np.random.default_rng(6).normal(size=4000))  # no bound to speak of
    found = estimate_from(local_maxima(slopes), largest_slope=float(slopes.max()), n_maxima=(200,), n_points=(40,))
    assert not found.identified
    assert "no endpoint is identified" in str(found)
    assert found.constant == max(found.details["fit"]["return_level"], slopes.max())
    assert found.interval[0] == slopes.max()
    found = estimate_from(local_maxima(slopes), largest_slope=1e6, n_maxima=(200,), n_points=(40,))
    assert found.constant == 1e6
    assert "L is the largest slope, 1e+06" in str(found)


def test_bounded_slopes_with_few_blocks_of_many_give_their_bound() -> None:
    slopes = 3 - np.random.default_rng(7).random(20_000) ** (1 / 2)  # bounded by 3, density growing away from it
    found = estimate_from(
        local_maxima(slopes),
        largest_slope=float(slopes.max()),
        n_maxima=(300,),
        n_points=(400,),
        initial_shapes=(1.0, 5.0),
    )
    assert found.identified
    assert found.constant == pytest.approx(3, rel=0.02)


def test_the_texts_scale_is_identified_where_the_proper_fit_has_the_same() -> None:
    slopes = 3 - np.random.default_rng(7).random(20_000) ** (1 / 2)
    grid: dict[str, Any] = {"n_maxima": (300,), "n_points": (400,), "initial_shapes": (5.0,), "bootstraps": 0}
    found = estimate_from(local_maxima(slopes), largest_slope=float(slopes.max()), protocol="text", **grid)
    assert found.identified
    assert found.constant == pytest.approx(found.details["fit"]["scale"], rel=0.01)
    assert found.constant < 0.5 * found.details["fit"]["endpoint"]  # far from the bound, which is the endpoint


def test_a_scale_at_which_the_optimizer_merely_stops_is_not_identified() -> None:
    slopes = np.exp(np.random.default_rng(6).normal(size=4000))  # no bound to speak of
    found = estimate_from(local_maxima(slopes), largest_slope=1.0, n_maxima=200, n_points=(40,), protocol="text")
    stopped = found.details["stopping_point"]
    assert not found.identified
    assert "NOT identified" in str(found)
    assert (found.constant, found.p_value) == (stopped["scale"], stopped["p_value"])
    assert found.interval[0] <= found.constant <= found.interval[1]


def test_the_text_has_no_l_where_its_optimizer_finds_no_fit() -> None:
    options: dict[str, Any] = {"n_maxima": 10, "n_points": (4,), "initial_shapes": (0.1,), "protocol": "text"}
    with pytest.raises(InputError, match="fitted"):
        estimate_from(local_maxima(np.linspace(1e300, 2e300, 40)), largest_slope=2e300, **options)


def test_the_authors_protocol_reports_where_their_optimizer_stopped() -> None:
    gradients, parameters = distances(8), distances(9)
    draw = unmatched_maxima(gradients, parameters)
    options: dict[str, Any] = {"n_maxima": (30,), "n_points": (20,), "initial_shapes": (5.0,)}
    found = estimate_from(draw, largest_slope=1.0, protocol="authors", **options)
    sample = draw(30, 20, np.random.default_rng((0, 30, 20, 0)))
    with np.errstate(all="ignore"):
        _, location, _ = weibull_min.fit(-sample, 5.0, optimizer=fmin)
    assert found.constant == pytest.approx(-location)
    assert not found.identified
    assert "optimizer stops" in str(found)


def test_the_authors_protocol_identifies_nothing_even_where_the_fit_does() -> None:
    slopes = 3 - np.random.default_rng(7).random(20_000) ** (1 / 2)
    grid: dict[str, Any] = {"n_maxima": 300, "n_points": (400,), "initial_shapes": (1.0,), "bootstraps": 0}
    found = estimate_from(local_maxima(slopes), largest_slope=float(slopes.max()), protocol="authors", **grid)
    assert found.details["fit"]["identified"]
    assert not found.identified


def test_the_interval_of_a_scale_contains_it_even_where_its_redraws_do_not() -> None:
    slopes = np.exp(np.random.default_rng(6).normal(size=4000))
    grid: dict[str, Any] = {"n_maxima": 30, "n_points": (40,), "initial_shapes": (1.0,), "bootstraps": 0, "seed": 8}
    found = estimate_from(local_maxima(slopes), largest_slope=float(slopes.max()), protocol="text", **grid)
    assert found.interval[0] == found.constant < min(found.details["redraws"])


def test_the_authors_protocol_falls_back_to_the_largest_sample() -> None:
    slopes = np.array([1.0, 2.0] * 20)
    found = estimate_from(
        local_maxima(slopes),
        largest_slope=2.0,
        protocol="authors",
        n_maxima=(60,),
        n_points=(4,),
        initial_shapes=(1.0,),
    )
    assert found.p_value is not None
    assert found.p_value < 0.001
    assert found.constant == 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_maxima": (2,)}, "M must be 3 or more"),
        ({"n_points": (1,)}, "N 2 or more"),
        ({"initial_shapes": (0.0,)}, "initial shapes positive"),
        ({"n_points": (100,)}, "Record longer"),
        ({"alpha": 1.5}, "alpha"),
        ({"seed": -1}, "seed"),
    ],
)
def test_refuses_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimate(**options)


def test_the_heat_map_has_a_cell_for_every_pair_and_shape() -> None:
    cells = heat_map(secant_maxima(distances(4)), (6, 10, 20), n_maxima=(10, 20), initial_shapes=(0.1, 1.0))
    assert cells.p_values.shape == cells.constants.shape == cells.identified.shape == (2, 3, 2)
    assert (cells.constants > 0).all()
    assert ((cells.p_values >= 0) & (cells.p_values <= 1)).all()
    alone = heat_map(secant_maxima(distances(4)), (10,), n_maxima=(20,), initial_shapes=(0.1, 1.0))
    assert np.array_equal(alone.p_values[0, 0], cells.p_values[1, 1])
    assert json.dumps(cells.to_json(), allow_nan=False)


def test_a_pair_passes_with_p_values_on_both_sides_of_alpha() -> None:
    p_values = np.array([[[0.9, 0.1], [0.9, 0.8]], [[0.2, 0.1], [0.5, 0.6]]])
    cells = HeatMap((10, 20), (4, 6), (1.0, 5.0), p_values, np.ones((2, 2, 2)), np.ones((2, 2, 2), dtype=bool))
    assert cells.passing(0.55) == [(0, 0), (1, 1)]
    assert cells.best(1, 1) == 1


def test_a_cell_does_not_depend_on_the_rest_of_the_grid() -> None:
    trace_distances = distances(5, 60)
    whole = heat_map(secant_maxima(trace_distances), (20, 40), n_maxima=(25, 55), initial_shapes=(1.0, 5.0))
    part = heat_map(secant_maxima(trace_distances), (20,), n_maxima=(55,), initial_shapes=(1.0, 5.0))
    assert np.array_equal(whole.constants[1, 0], part.constants[0, 0])


def test_a_block_pairs_distinct_moments() -> None:
    slopes = distances(0)
    np.fill_diagonal(slopes, 1e9)  # a moment paired with itself would show
    every = np.unique(slopes[np.triu_indices(30, 1)])
    maxima = secant_maxima(slopes)(500, 30, np.random.default_rng(0))
    assert maxima.shape == (500,)
    assert np.isin(maxima, every).all()
    single = secant_maxima(slopes)(5000, 2, np.random.default_rng(0))
    assert len(np.unique(single)) == len(every)


def test_a_block_of_all_local_slopes_is_their_maximum() -> None:
    slopes = np.random.default_rng(1).random(40)
    assert (local_maxima(slopes)(5, 80, np.random.default_rng(0)) == slopes.max()).all()
    assert np.isin(local_maxima(slopes)(50, 6, np.random.default_rng(0)), slopes).all()


def test_unmatched_blocks_mix_moments_as_the_released_code_does() -> None:
    gradients, parameters = distances(2), distances(3)
    matched = np.divide(gradients, parameters, out=np.zeros_like(gradients), where=parameters > 0)
    maxima = unmatched_maxima(gradients, parameters)(200, 30, np.random.default_rng(0))
    assert maxima.max() > matched.max()  # a large rise over another pair's small run


def test_a_block_larger_than_the_trace_is_refused() -> None:
    with pytest.raises(InputError, match="a block needs 40"):
        secant_maxima(distances(0))(3, 40, np.random.default_rng(0))
