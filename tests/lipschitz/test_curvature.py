"""L over the path: the largest curvature once the transient is over."""

import numpy as np
import pytest
import torch

from excite import data, models
from excite.errors import InputError
from excite.lipschitz import estimate_lipschitz
from excite.objectives import standard_loss
from excite.schedules import constant
from excite.trace import Probe, Trace, largest_curvature
from excite.training import train


def trace(curvatures: list[float], residuals: list[float] | None = None) -> Trace:
    n = len(curvatures)
    return Trace(
        squared_gradient_distances=np.zeros((n + 1, n + 1)),
        squared_parameter_distances=np.zeros((n + 1, n + 1)),
        steps=np.arange(1, n + 1) * 10,
        learning_rates=np.full(n, 0.1),
        curvatures=np.array(curvatures),
        curvature_residuals=np.array(residuals or [0.01] * n),
        curvature_steps=np.arange(1, n + 1) * 10,
        facts={"probe": 512},
    )


def test_the_transient_does_not_count() -> None:
    found = estimate_lipschitz(trace([50.0, 3.0, 4.0, 5.0, 4.5, 4.0, 4.0, 4.0, 4.0, 4.2]), "curvature")
    assert found.constant == 5.0
    assert found.interval == pytest.approx((2.99, 5.01))
    assert found.identified
    assert "9 Hessian norms on 512 probe examples" in str(found)
    assert estimate_lipschitz(trace([50.0, 3.0]), "curvature", transient=0.0).constant == 50.0


def test_where_only_the_transient_is_left_it_is_not_trusted() -> None:
    found = estimate_lipschitz(trace([50.0] + [float("nan")] * 9), "curvature", transient=0.2)
    assert not found.identified
    assert "all within the first 20%" in str(found)


def test_unsettled_eigenvalues_are_not_trusted_and_broken_ones_not_counted() -> None:
    found = estimate_lipschitz(trace([2.0, float("nan"), 0.0, 3.0], [0.0, 0.0, 0.0, 1.0]), "curvature")
    assert "2 Hessian norms" in str(found)
    assert not found.identified
    assert "curvature_iterations" in str(found)
    assert found.constant == 3.0


def test_a_residual_larger_than_its_curvature_bounds_nothing_from_below() -> None:
    found = estimate_lipschitz(trace([2.0, 3.0], [0.1, 9.0]), "curvature")
    assert found.interval == (0.0, 12.0)
    assert found.plot().get_xlim()[1] < 1e3  # as drawn, 2/L has no upper end


def test_a_trace_without_curvatures_says_how_to_get_them() -> None:
    with pytest.raises(InputError, match="curvature_every"):
        estimate_lipschitz(trace([float("nan")]), "curvature")


def test_ten_seeds_agree_on_a_real_network(capsys: pytest.CaptureFixture[str]) -> None:
    digits = data.load("mnist-sample").train.subset(256)
    torch.manual_seed(0)
    model = models.create("lenet5", input_shape=(1, 28, 28))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, digits, standard_loss, optimizer, constant(0.1), epochs=5, batch_size=64)
    probe = Probe(digits.floats()[:64], digits.labels[:64], batch_size=64)
    values = [largest_curvature(model, probe, iterations=12, seed=seed).value for seed in range(10)]
    spread = (max(values) - min(values)) / min(values)
    with capsys.disabled():
        print(f"curvature over ten seeds: {min(values):.4g} to {max(values):.4g}, spread {spread:.2%}")
    assert spread < 0.05
