"""From a recorded run to L, by every method that reads a trace."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.lipschitz import ESTIMATORS, Estimator, LipschitzEstimate, ShortTrainings, estimate_lipschitz
from excite.lipschitz.protocol import Needs
from excite.trace import Recorder, Trace

LARGEST = 8.0  # L
FROM_TRACES = [name for name, kind in ESTIMATORS.items() if kind.needs == "trace"]


class NoisyQuadratic(nn.Module):
    """½ Σ λᵢ (θᵢ − xᵢ)² for a batch of targets x, with λ up to 8."""

    eigenvalues: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((6,), 3.0, dtype=torch.float64))
        self.register_buffer("eigenvalues", torch.linspace(0.5, LARGEST, 6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (self.eigenvalues * (self.theta - x) ** 2).sum(1)


def record(**options: Any) -> Trace:
    model = NoisyQuadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)

    def targets(n: int) -> Tensor:
        return torch.randn(n, 6, generator=generator, dtype=torch.float64)

    probe = targets(16)
    recorder = Recorder(
        model,
        optimizer,
        probe=(probe, torch.zeros(16)),
        loss=lambda output, _: output,
        slopes_per_epoch=10,
        curvature_every=4,
        **options,
    )
    for _ in range(20):
        for _ in range(10):
            x = targets(8)

            def closure(x: Tensor = x) -> Tensor:
                loss: Tensor = model(x).mean()
                return loss

            optimizer.zero_grad()
            closure().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            recorder.after_step(closure)
        recorder.record()
    return recorder.trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record()


def test_curvature_is_the_largest_eigenvalue(trace: Trace) -> None:
    found = estimate_lipschitz(trace, "curvature")
    assert found.constant == pytest.approx(LARGEST, rel=1e-4)
    assert found.learning_rate() == pytest.approx(1 / LARGEST, rel=1e-4)


def test_local_slopes_stay_below_it_and_their_estimate_is_at_least_the_largest(trace: Trace) -> None:
    assert (trace.slopes <= LARGEST * (1 + 1e-6)).all()
    found = estimate_lipschitz(trace, "local", bootstraps=19)
    assert found.constant >= trace.slopes.max()
    assert found.method == "local"


def test_epochs_estimates_from_probe_gradients_stay_near_it() -> None:
    trace = record(gradient="probe")
    found = estimate_lipschitz(trace, "epochs", bootstraps=19)
    slopes = np.divide(
        trace.gradient_distances,
        trace.parameter_distances,
        where=trace.parameter_distances > 0,
        out=np.zeros((20, 20)),
    )
    assert slopes.max() <= LARGEST * (1 + 1e-6)
    assert found.constant >= slopes.max()


@pytest.mark.parametrize("method", FROM_TRACES)
def test_same_trace_same_estimate_bit_for_bit(trace: Trace, method: str) -> None:
    options = {} if method == "curvature" else {"bootstraps": 19, "n_maxima": (25, 55)}
    first, second = (estimate_lipschitz(trace, method, **options) for _ in range(2))
    assert first == second
    assert LipschitzEstimate.from_json(first.to_json()) == first


def test_one_pair_may_be_fixed(trace: Trace) -> None:
    found = estimate_lipschitz(trace, "epochs", n_maxima=50, n_points=10, initial_shapes=(1.0, 5.0), bootstraps=0)
    assert (found.details["M"], found.details["N"]) == (50, 10)


def test_the_authors_protocol_needs_input_gradients_which_the_papers_ignores(trace: Trace) -> None:
    with pytest.raises(InputError, match="holds no gradients with respect to the pixels"):
        estimate_lipschitz(trace, "epochs", protocol="authors")
    both = record(input_gradients=True)
    options = {"n_maxima": (25,), "n_points": (20,), "initial_shapes": (1.0,)}
    assert estimate_lipschitz(both, "epochs", **options) == estimate_lipschitz(trace, "epochs", **options)
    found = estimate_lipschitz(both, "epochs", protocol="authors", **options)
    assert not found.identified
    slopes = both.input_gradient_distances / (both.parameter_distances + np.eye(len(both)))
    assert found.details["largest_slope"] == slopes.max()
    assert found.method == "epochs (authors' protocol)"


def test_too_little_is_named_with_the_cure(trace: Trace) -> None:
    with pytest.raises(InputError, match="n_points=20"):
        estimate_lipschitz(trace, "epochs", n_points=100)
    with pytest.raises(InputError, match="N=1000"):
        estimate_lipschitz(trace, "local", n_points=1000)
    with pytest.raises(InputError, match=r'"edge" needs a ShortTrainings, not Trace'):
        estimate_lipschitz(trace, "edge")
    with pytest.raises(InputError, match=r'"local" needs a Trace, not NoneType'):
        estimate_lipschitz(None, "local")
    empty = Trace(np.zeros((1, 1)), np.zeros((1, 1)), facts={"gradient": "epoch_mean"})
    for method in FROM_TRACES:
        with pytest.raises(InputError, match=r"The trace holds (no|too few)"):
            estimate_lipschitz(empty, method)


def test_wrong_names_and_options_are_refused_with_the_nearest(trace: Trace) -> None:
    with pytest.raises(InputError, match='no estimator "epoch"; did you mean "epochs"'):
        estimate_lipschitz(trace, "epoch")
    with pytest.raises(InputError, match='option of the estimator local "n_maximum"; did you mean "n_maxima"'):
        estimate_lipschitz(trace, "local", n_maximum=3)
    with pytest.raises(InputError, match='"alpha" of the estimator epochs does not fit'):
        estimate_lipschitz(trace, "epochs", alpha="high")
    with pytest.raises(InputError, match='also needs "constant"'):
        estimate_lipschitz(trace, "stated")


@dataclass(frozen=True)
class LastSlope(Estimator[Trace]):
    title: ClassVar[str] = "last slope"
    about: ClassVar[str] = "The slope of the last sampled step."
    needs: ClassVar[Needs] = "trace"

    factor: float = 1.0

    def __call__(self, evidence: Trace) -> LipschitzEstimate:
        value = self.factor * float(evidence.slopes[-1])
        return LipschitzEstimate(value, (value, value), "last-slope", False, "a toy")


def test_an_estimator_registered_at_run_time_works(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS, "last-slope", LastSlope)
    assert estimate_lipschitz(trace, "last-slope", factor=2.0).constant == 2 * trace.slopes[-1]
    with pytest.raises(InputError, match='did you mean "factor"'):
        estimate_lipschitz(trace, "last-slope", factr=2.0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_says_what_it_is_and_needs(name: str) -> None:
    kind = ESTIMATORS[name]
    assert kind.title.startswith(name)
    assert kind.about.endswith(".")
    assert kind.needs in ("trace", "short trainings", "nothing")


def test_the_edge_of_short_trainings_keeps_its_budget_and_says_what_it_holds_for() -> None:
    def losses_at(rate: float, _draw: int, steps: int) -> list[float]:
        return [2.5 * (1 - rate * 5.0) ** (2 * step) for step in range(steps)]

    found = estimate_lipschitz(ShortTrainings(losses_at, 10_000, 0.1, "SGD"), "edge", budget=0.2)
    assert 5.0 < found.constant < 25.0  # an upper bound of 5, from runs much shorter than a training
    assert found.details["optimizer"] == "SGD"
    assert found.details["budget"] == 2000
    assert found.details["spent"] <= 5000  # more than the budget, to see whether the threshold drifts
    assert ESTIMATORS["edge"]().most_steps(10_000) == 10_000
    assert ESTIMATORS["edge"](limit=0.5).most_steps(10_000) == 5_000  # type: ignore[call-arg]
    assert ESTIMATORS["edge"](steps=40, limit=0.01).most_steps(10_000) == 400  # type: ignore[call-arg]


def test_recorder_problems_are_part_of_the_basis(trace: Trace) -> None:
    odd = replace(trace, facts=trace.facts | {"problems": ["The step used 0.1 times the gradient."]})
    plain, warned = (estimate_lipschitz(recorded, "curvature") for recorded in (trace, odd))
    assert warned.constant == plain.constant
    assert "The step used 0.1 times the gradient. 1/L" in str(warned)
