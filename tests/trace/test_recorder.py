"""The recorder records the right values and does not change the run."""

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.errors import CorruptFileError, InputError
from excite.lipschitz.algorithm_1 import secants
from excite.trace import Recorder, Trace

EPOCHS, STEPS, BATCH = 4, 6, 8


def network() -> nn.Module:
    """Small, with everything that a look could disturb: batch-norm, dropout, a buffer."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 4), nn.BatchNorm1d(4)
    )


def batch(epoch: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * epoch + step)
    return torch.randn(BATCH, 5, generator=generator), torch.randint(0, 4, (BATCH,), generator=generator)


def probe() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(77)
    return torch.randn(32, 5, generator=generator), torch.randint(0, 4, (32,), generator=generator)


def drawn_anew(moment: int) -> tuple[Tensor, Tensor]:
    """Examples from the global random state, which the recorder sets and restores."""
    return moment + torch.randn(20, 5), torch.randint(0, 4, (20,))


def test_only_one_process_has_the_trace() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, slopes_per_epoch=1)
    averaged: list[Tensor] = []
    recorder.join(lambda vector: averaged.append(vector) or vector, keeps=False)  # type: ignore[func-returns-value]

    def closure() -> Tensor:
        return cross_entropy(model(x), y)

    x, y = batch(0, 0)
    closure().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    recorder.after_step(closure)
    recorder.record()
    assert len(averaged) == 2  # the gradients at both ends of the step
    with pytest.raises(InputError, match="rank 0"):
        _ = recorder.trace


Make = Callable[[nn.Module, torch.optim.Optimizer], Recorder]


def run(
    make: Make | None, *, start: int = 0, stop: int = EPOCHS * STEPS, states: list[Any] | None = None
) -> tuple[nn.Module, torch.optim.Optimizer, Recorder | None]:
    """Train; with `states`, go on from its last entry and leave a new one at the end."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(5)
    if states:
        model.load_state_dict(states[-1]["model"])
        optimizer.load_state_dict(states[-1]["optimizer"])
        torch.set_rng_state(states[-1]["random"])
    recorder = make(model, optimizer) if make else None
    if states and recorder:
        recorder.restore(safetensors.torch.load(states[-1]["tensors"]), json.loads(states[-1]["facts"]))
    for index in range(start, stop):
        epoch, step = divmod(index, STEPS)
        model.train()
        x, y = batch(epoch, step)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            return cross_entropy(model(x), y)

        optimizer.zero_grad()
        closure().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if recorder:
            recorder.after_step(closure)
        if step == STEPS - 1:
            model.eval()
            if recorder:
                recorder.record()
    if states is not None and recorder:
        tensors, facts = recorder.state()
        states.append(
            {
                "model": {name: value.clone() for name, value in model.state_dict().items()},
                "optimizer": optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "tensors": safetensors.torch.save(tensors),
                "facts": json.dumps(facts, allow_nan=False),
            }
        )
    return model, optimizer, recorder


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    momenta = [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    modes = torch.tensor([module.training for module in model.modules()])
    return [*model.state_dict().values(), *momenta, *gradients, modes, torch.get_rng_state()]


def arrays(trace: Trace) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value for name, value in vars(trace).items() if isinstance(value, np.ndarray)}


@pytest.mark.parametrize(("gradient", "inputs"), [("epoch_mean", True), ("probe", False)])
@pytest.mark.parametrize("storage", ["exact", "sketch"])
def test_a_run_with_a_recorder_is_bit_identical_to_one_without(gradient: Any, inputs: bool, storage: Any) -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    plain = everything(*run(None)[:2])
    python, legacy = random.getstate(), str(np.random.get_state())  # noqa: NPY002
    model, optimizer, recorder = run(
        lambda m, o: Recorder(
            m,
            o,
            probe=probe(),
            gradient=gradient,
            input_gradients=inputs,
            storage=storage,
            batch_size=16,
            slopes_per_epoch=3,
            curvature_every=2,
            draw=drawn_anew,
        )
    )
    for expected, actual in zip(plain, everything(model, optimizer), strict=True):
        assert torch.equal(expected, actual)
    assert random.getstate() == python
    assert str(np.random.get_state()) == legacy  # noqa: NPY002
    assert recorder is not None
    assert len(recorder.trace) == EPOCHS
    assert len(recorder.trace.slopes) == 3 * EPOCHS
    assert len(recorder.trace.curvatures) == EPOCHS // 2
    assert len(recorder.trace.batch_statistics) == EPOCHS


def test_distances_equal_those_of_stored_vectors() -> None:
    gradients, parameters = [], []

    def make(model: nn.Module, optimizer: torch.optim.Optimizer) -> Recorder:
        def watch(*_: object) -> None:
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double())
            parameters.append(nn.utils.parameters_to_vector(model.parameters()).detach().double())

        optimizer.register_step_post_hook(watch)
        return Recorder(model, optimizer, storage="exact")

    *_, recorder = run(make)
    assert recorder is not None
    trace = recorder.trace
    theta_0 = nn.utils.parameters_to_vector(network().parameters()).detach().double()
    g = torch.stack(gradients).view(EPOCHS, STEPS, -1).mean(1)
    d = torch.stack(parameters)[STEPS - 1 :: STEPS] - theta_0
    np.testing.assert_allclose(trace.gradient_distances, torch.cdist(g, g).numpy(), rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(trace.parameter_distances, torch.cdist(d, d).numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(trace.gradient_norms, g.norm(dim=1).numpy(), rtol=1e-5)
    assert trace.steps.tolist() == [6, 12, 18, 24]
    assert trace.learning_rates.tolist() == [0.1] * 4


def test_local_slope_is_the_secant_of_the_loss_of_the_step_with_one_dropout_mask() -> None:
    expected = []
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, slopes_per_epoch=STEPS, steps_per_epoch=STEPS)
    torch.manual_seed(5)
    for step in range(STEPS):
        x, y = batch(0, step)
        twin = copy.deepcopy(model)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mask = torch.get_rng_state()
        recorder.after_step(lambda x=x, y=y: cross_entropy(model(x), y))  # type: ignore[misc]
        assert torch.equal(mask, torch.get_rng_state())
        gradients = []
        for each in (twin, copy.deepcopy(model)):
            torch.set_rng_state(mask)
            found = torch.autograd.grad(cross_entropy(each(x), y), list(each.parameters()))
            gradients.append(nn.utils.parameters_to_vector(found))
        moved = nn.utils.parameters_to_vector(model.parameters()) - nn.utils.parameters_to_vector(twin.parameters())
        expected.append(float((gradients[1] - gradients[0]).norm() / moved.detach().norm()))
    np.testing.assert_allclose(recorder.trace.slopes, expected, rtol=1e-4)
    assert recorder.trace.slope_steps.tolist() == [1, 2, 3, 4, 5, 6]


def test_slopes_of_a_quadratic_never_exceed_its_largest_eigenvalue() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(20, 20, dtype=torch.float64, generator=generator)
    matrix = root @ root.T
    theta = nn.Parameter(torch.randn(20, dtype=torch.float64, generator=generator))
    model = nn.ParameterList([theta])
    largest = float(torch.linalg.eigvalsh(matrix)[-1])
    optimizer = torch.optim.SGD([theta], lr=1 / largest)
    recorder = Recorder(model, optimizer, slopes_per_epoch=10)
    for _ in range(10):
        for _ in range(10):
            loss = 0.5 * theta @ matrix @ theta
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            recorder.after_step(lambda: 0.5 * theta @ matrix @ theta)
        recorder.record()
    trace = recorder.trace
    assert len(trace.slopes) > 90
    assert (trace.slopes <= largest * (1 + 1e-6)).all()
    upper = np.triu_indices(len(trace), 1)
    assert (trace.gradient_distances[upper] <= largest * (1 + 1e-6) * trace.parameter_distances[upper]).all()


@pytest.mark.parametrize("gradient", ["epoch_mean", "probe"])
def test_moments_of_single_steps_need_a_probe(gradient: Any) -> None:
    """Gradient descent on ½ · 4 · θ²: of the gradients before the steps, slopes would be 20."""
    model = nn.Linear(1, 1, bias=False)
    x, y = torch.ones(1, 1), torch.zeros(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return 2 * (output - target).square().mean()

    recorder = Recorder(model, optimizer, probe=(x, y), loss=loss, gradient=gradient, slopes_per_epoch=0)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        recorder.record()
    if gradient == "probe":
        np.testing.assert_allclose(secants(recorder.trace)[np.triu_indices(3, 1)], 4.0, rtol=1e-5)
        assert recorder.problems == ()
    else:
        assert [*recorder.state()[1]["problems"]] == ["single steps"]


@pytest.mark.parametrize("where", ["in the checkpoint", "in a folder", "sketched"])
@pytest.mark.parametrize("cut", [STEPS - 1, 2 * STEPS, 2 * STEPS + 2])
def test_resumed_run_has_the_same_trace_bit_for_bit(tmp_path: Path, where: str, cut: int) -> None:
    def make(model: nn.Module, optimizer: torch.optim.Optimizer) -> Recorder:
        return Recorder(
            model,
            optimizer,
            probe=probe(),
            storage="sketch" if where == "sketched" else "exact",
            folder=tmp_path / "vectors" if where == "in a folder" else None,
            input_gradients=True,
            slopes_per_epoch=2,
            curvature_every=2,
            draw=drawn_anew,
            batch_size=BATCH,
        )

    *_, whole = run(make)
    states: list[Any] = []
    run(make, stop=cut, states=states)
    *_, resumed = run(make, start=cut, states=states)
    assert whole is not None
    assert resumed is not None
    for name, value in arrays(whole.trace).items():
        assert np.array_equal(value, arrays(resumed.trace)[name]), name


def test_folder_holds_the_vectors_and_damage_is_detected(tmp_path: Path) -> None:
    states: list[Any] = []

    def make(model: nn.Module, optimizer: torch.optim.Optimizer) -> Recorder:
        return Recorder(model, optimizer, storage="exact", folder=str(tmp_path))

    run(make, states=states)
    assert not any("vectors" in name for name in safetensors.torch.load(states[-1]["tensors"]))
    file = tmp_path / "gradients-0002.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    with pytest.raises(CorruptFileError, match=r"gradients-0002\.npy"):
        run(make, states=states)


def test_refuses_a_state_with_other_settings() -> None:
    states: list[Any] = []
    run(lambda m, o: Recorder(m, o, storage="exact"), states=states)
    with pytest.raises(InputError, match="settings"):
        run(lambda m, o: Recorder(m, o, storage="sketch"), states=states)


def test_the_first_epoch_samples_powers_of_two_then_steps_are_spread_evenly() -> None:
    *_, recorder = run(lambda m, o: Recorder(m, o, slopes_per_epoch=2))
    assert recorder is not None
    steps = recorder.trace.slope_steps
    assert steps[:3].tolist() == [1, 2, 4]
    for epoch in range(1, EPOCHS):
        mine = steps[(steps > epoch * STEPS) & (steps <= (epoch + 1) * STEPS)]
        assert len(mine) == 2
        assert mine[1] - mine[0] == STEPS // 2


def test_auto_keeps_small_models_whole_and_sketches_large_ones() -> None:
    small = Recorder(nn.Linear(3, 3), probe=(torch.zeros(1, 3), torch.zeros(1).long()), gradient="probe")
    large = Recorder(nn.Linear(1500, 1500), probe=(torch.zeros(1, 1500), torch.zeros(1).long()), gradient="probe")
    assert "exact" in small.trace.facts["storage"]
    assert "sketch" in large.trace.facts["storage"]


def test_close_stops_recording() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer)
    recorder.close()
    x, y = batch(0, 0)
    cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    with pytest.raises(InputError, match="no optimizer step"):
        recorder.record()


def test_input_gradients_are_those_of_the_released_code() -> None:
    model, (x, y) = network().eval(), probe()
    recorder = Recorder(model, probe=(x, y), gradient="probe", input_gradients=True, batch_size=32)
    recorder.record()
    torch.manual_seed(0)
    inputs = x.clone().requires_grad_(True)
    model.train()
    (expected,) = torch.autograd.grad(cross_entropy(model(inputs), y), inputs)
    (_, norm), _ = recorder.trace.squared_input_gradient_distances**0.5
    assert norm == pytest.approx(float(expected.mean(0).norm()), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        ({"optimizer": None}, "optimizer"),
        ({"gradient": "probe"}, r"probe=\(x, y\)"),
        ({"input_gradients": True}, r"probe=\(x, y\)"),
        ({"curvature_every": 3}, r"probe=\(x, y\)"),
        ({"gradient": "nonsense"}, "epoch_mean"),
        ({"storage": "nonsense"}, "sketch"),
    ],
)
def test_what_is_missing_is_said(arguments: dict[str, Any], keyword: str) -> None:
    model = network()
    settings = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)} | arguments
    with pytest.raises(InputError, match=keyword):
        Recorder(model, **settings)
