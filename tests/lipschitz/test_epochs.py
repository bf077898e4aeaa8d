"""Secants between epochs, the default N, and what is refused before anything trains."""

import numpy as np
import pytest

from excite.errors import InputError
from excite.lipschitz.algorithm_1 import Epochs, Local, Protocol, secants
from excite.lipschitz.protocol import Recording
from excite.trace import Trace


def test_secants_are_ratios_of_distances_and_zero_where_nothing_moved() -> None:
    parameters = np.array([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])
    gradients = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 10.0], [2.0, 10.0]])
    trace = Trace(
        squared_gradient_distances=((gradients[:, None] - gradients) ** 2).sum(-1),
        squared_parameter_distances=((parameters[:, None] - parameters) ** 2).sum(-1),
        steps=np.arange(3),
    )
    expected = np.array([[0, 2, np.hypot(1, 10) / 5], [2, 0, 0], [np.hypot(1, 10) / 5, 0, 0]])
    np.testing.assert_allclose(secants(trace), expected)


def test_by_default_n_is_the_papers_in_proportion_to_the_epochs() -> None:
    assert Epochs().points(Recording(164)) == (80, 100, 120, 150, 164)
    assert Epochs().points(Recording(20)) == (10, 12, 14, 18, 20)
    assert Epochs().points(Recording(3)) == (2,)
    assert Epochs(n_points=100).points(Recording(164)) == (100,)


@pytest.mark.parametrize(
    ("estimator", "recording", "message"),
    [
        (Epochs(n_points=100), Recording(20), "will record too little .* n_points=20"),
        (Epochs(), Recording(1), "a secant needs 2"),
        (Epochs(protocol="authors"), Recording(20), r"will record no gradients .* Set record\.input_gradients = true"),
    ],
)
def test_refuses_insufficient_recordings(estimator: Epochs, recording: Recording, message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimator.check(recording)


def test_refuses_an_unknown_protocol() -> None:
    with pytest.raises(InputError, match=r"protocol.*text, fitted, authors"):
        Epochs(protocol="author")  # type: ignore[arg-type]


def test_accepts_sufficient_recordings() -> None:
    Epochs(n_points=20).check(Recording(20))
    Epochs(protocol="authors").check(Recording(20, input_gradients=True))


@pytest.mark.parametrize("protocol", ["text", "fitted", "authors"])
def test_ignores_a_diverged_epoch(protocol: Protocol) -> None:
    points = np.random.default_rng(0).normal(size=(9, 3))
    points[-1] = np.nan
    distances = ((points[:, None] - points) ** 2).sum(-1)
    trace = Trace(distances, 4 * distances, steps=np.arange(8), squared_input_gradient_distances=distances)
    epochs = Epochs(protocol=protocol, n_maxima=5, n_points=8, initial_shapes=(1.0,), bootstraps=0)
    assert epochs(trace).constant > 0


def test_by_default_blocks_are_small_shares_of_the_slopes() -> None:
    assert Local().points(Recording(10, slopes=1000)) == (50, 70, 100, 140, 200)
    assert Local().points(Recording(10, slopes=3)) == (2,)


def test_too_few_slopes_are_refused_before_anything_trains() -> None:
    with pytest.raises(InputError, match="The run will record no local slopes"):
        Local().check(Recording(10))
    with pytest.raises(InputError, match="n_points=80"):
        Local(n_points=100).check(Recording(10, slopes=40))
    Local(n_points=80).check(Recording(10, slopes=40))
