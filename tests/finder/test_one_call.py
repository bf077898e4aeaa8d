"""The one call: a known edge is found, whatever the batches and the optimizer; nothing remembers that it was here."""

import copy
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import excite
from excite.errors import InputError
from excite.finder.borrowed import make_fresh
from excite.lipschitz import LipschitzEstimate

DIMENSIONS = 6


def sgd(parameters: list[nn.Parameter], rate: float) -> Optimizer:
    return SGD(parameters, lr=rate)


def whitened() -> tuple[Tensor, Tensor]:
    """Inputs of covariance I in every batch of 2·DIMENSIONS: of the loss ½·mean((x·w − y)²) the curvature is 1."""
    basis = torch.eye(DIMENSIONS) * DIMENSIONS**0.5
    inputs = torch.cat([basis, -basis]).repeat(8, 1)
    return inputs, inputs @ torch.linspace(-1, 1, DIMENSIONS).unsqueeze(1)


def half_mse(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * mse_loss(output, target)


def linear() -> nn.Module:
    return nn.Linear(DIMENSIONS, 1, bias=False)


class Named(nn.Module):
    """Takes its inputs by name and answers as the models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(DIMENSIONS, 1, bias=False)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> SimpleNamespace:
        logits = self.inner(inputs)
        return SimpleNamespace(logits=logits, loss=None if labels is None else half_mse(logits, labels))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(DIMENSIONS, 1, bias=False)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.inner(left + right)  # type: ignore[no-any-return]


def batches() -> list[tuple[Tensor, Tensor]]:
    inputs, targets = whitened()
    return list(zip(torch.split(inputs, 2 * DIMENSIONS), torch.split(targets, 2 * DIMENSIONS), strict=True))


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Any]], dict[str, Any]]] = {
    "tuples": (linear, batches, {}),
    "lists": (linear, lambda: [[x, y] for x, y in batches()], {}),
    "two inputs": (TwoInputs, lambda: [(x / 2, x / 2, y) for x, y in batches()], {}),
    "dicts, alone": (linear, lambda: [{"image": x, "label": y} for x, y in batches()], {}),
    "dicts, by name": (TwoInputs, lambda: [{"left": x, "right": 0 * x, "target": y} for x, y in batches()], {}),
    "dicts, the model's own loss": (Named, lambda: [{"inputs": x, "labels": y} for x, y in batches()], {}),
    "a step function": (
        linear,
        lambda: [SimpleNamespace(x=x, y=y, to=lambda _device, x=x, y=y: (x, y)) for x, y in batches()],
        {"step": lambda model, batch: half_mse(model(batch[0]), batch[1])},
    ),
}


@pytest.mark.parametrize(("build", "loader", "options"), KINDS.values(), ids=KINDS.keys())
def test_a_quadratic_s_edge_whatever_the_batches(
    build: Callable[[], nn.Module], loader: Callable[[], list[Any]], options: dict[str, Any]
) -> None:
    estimate = excite.find_learning_rate(build(), loader(), half_mse, sgd, budget=600, steps=40, **options)
    assert estimate.interval[0] <= 1.0 <= estimate.interval[1]
    assert estimate.constant == pytest.approx(1.0, rel=0.5)
    assert estimate.details["weights"] == "fresh"


def test_tensors_are_their_own_targets() -> None:
    inputs, _ = whitened()
    estimate = excite.find_learning_rate(
        nn.Linear(DIMENSIONS, DIMENSIONS, bias=False),
        list(torch.split(inputs, 2 * DIMENSIONS)),
        half_mse,
        sgd,
        budget=1200,
    )
    assert 0 < estimate.learning_rate() < 20 * DIMENSIONS


def test_a_function_that_builds_the_model() -> None:
    estimate = excite.find_learning_rate(linear, batches(), half_mse, sgd, budget=600, steps=40)
    assert estimate.constant == pytest.approx(1.0, rel=0.5)


def test_an_optimizer_of_yours_gives_its_kind_and_groups() -> None:
    """Half of the weights learn at a tenth of the rate, so the edge is where the other half's is."""
    model = nn.Sequential(nn.Linear(DIMENSIONS, 1, bias=False), nn.Linear(1, 1))
    mine = SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1].parameters(), "lr": 0.05}], momentum=0.3
    )
    before = copy.deepcopy(mine.state_dict())
    estimate = excite.find_learning_rate(model, batches(), half_mse, mine, budget=600, steps=40)
    assert estimate.learning_rate() > 0
    assert mine.state_dict() == before


# --- fresh weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(50, 64), nn.Linear(64, 50, bias=False)
        self.out.weight = self.words.weight


class DrawsForItsLayers(nn.Module):
    """As older code does it: `.data` is written to, by the network, for a layer that knows nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 3), nn.ParameterList([torch.ones(3)])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.layer.weight.data.fill_(0.5)
        self.scale[0].data.fill_(1.0)


def test_fresh_weights_are_as_those_of_a_new_model() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2)
    make_fresh(attention)
    assert not attention.out_proj.bias.any()
    tied = Tied()
    make_fresh(tied)
    assert float(tied.words.weight.detach().std()) == pytest.approx(1.0, rel=0.1)  # an embedding's; a layer's is 0.07
    assert tied.out.weight is tied.words.weight
    network = DrawsForItsLayers()
    make_fresh(network)
    assert (network.layer.weight == 0.5).all()
    assert (network.scale[0] == 1).all()


def test_frozen_weights_are_kept_within_a_layer_too() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[0].weight.requires_grad_(False)
    model[1].requires_grad_(False)
    model(torch.randn(5, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    make_fresh(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"0.bias"}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_nothing_draws_are_refused() -> None:
    normed = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)))
    with pytest.raises(InputError, match=r'draws "0\.weight_g"'):
        make_fresh(normed)


# --- nothing remembers that it was here


class Everything(nn.Module):
    """Batch-norm, dropout, a frozen layer and a buffer that is replaced at every step."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(DIMENSIONS, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
        )
        self.layers[0].requires_grad_(False)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.count = self.count + 1
        return self.layers(inputs)  # type: ignore[no-any-return]


def photograph(model: nn.Module, optimizer: Optimizer, generator: torch.Generator) -> list[Any]:
    return copy.deepcopy(
        [
            model.state_dict(),
            [parameter.grad for parameter in model.parameters()],
            [module.training for module in model.modules()],
            [parameter.requires_grad for parameter in model.parameters()],
            optimizer.state_dict(),
            generator.get_state(),
            torch.get_rng_state(),
            np.random.get_state(),  # noqa: NPY002
            random.getstate(),
        ]
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("weights", ["fresh", "present"])
@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_before_bit_for_bit(weights: Any, fails: bool) -> None:
    torch.manual_seed(0)
    model = Everything().train()
    model.layers[1].eval()
    optimizer = AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(64, DIMENSIONS)
    loader = DataLoader(
        TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=16, shuffle=True, generator=generator
    )
    for x, y in loader:  # there is a state, and there are gradients
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    before = photograph(model, optimizer, generator)
    count = model.count
    calls = 0

    def step(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if fails and calls > 30:
            raise RuntimeError("in the middle")
        np.random.rand()  # noqa: NPY002
        random.random()  # noqa: S311
        return cross_entropy(model(batch[0]), batch[1])

    if fails:
        with pytest.raises(RuntimeError, match="in the middle"):
            excite.find_learning_rate(model, loader, optimizer=optimizer, step=step, weights=weights, budget=200)
    else:
        excite.find_learning_rate(model, loader, optimizer=optimizer, step=step, weights=weights, budget=200, steps=20)
    assert calls > 20
    assert same(photograph(model, optimizer, generator), before)
    assert model.count is count


class Head(nn.Module):
    """A loss with weights of its own, and a buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return cross_entropy(self.inner(output), target)


@pytest.mark.parametrize("builds", [False, True])
def test_a_loss_with_weights_of_its_own_is_as_before_too(builds: bool) -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(DIMENSIONS, 4), Head()
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
    inputs = torch.randn(32, DIMENSIONS)
    loader = [(inputs, inputs[:, :3].argmax(1))]
    before = photograph(head, optimizer, torch.Generator().manual_seed(0))
    if builds:
        excite.find_learning_rate(lambda: nn.Linear(DIMENSIONS, 4), loader, head, sgd, budget=100, steps=20)
    else:
        excite.find_learning_rate(body, loader, head, optimizer, budget=100, steps=20)
    assert same(photograph(head, optimizer, torch.Generator().manual_seed(0)), before)


def test_the_accelerator_s_generator_is_as_before_too(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[Any] = [torch.zeros(1)]
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.manual_seed", states.append)
    monkeypatch.setattr("torch.cuda.get_rng_state", lambda _: states[-1])
    monkeypatch.setattr("torch.cuda.set_rng_state", lambda state, _: states.append(state))
    excite.find_learning_rate(linear(), batches(), half_mse, sgd, budget=100, steps=20)
    assert len(states) > 2
    assert states[-1] is states[0]


def test_training_goes_on_as_if_nobody_had_looked() -> None:
    def train(look: bool) -> Tensor:
        torch.manual_seed(1)
        model = Everything()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        inputs = torch.randn(64, DIMENSIONS)
        loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=16, shuffle=True)
        for epoch in range(3):
            if look and epoch == 1:
                excite.find_learning_rate(model, loader, budget=100, steps=20)
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(train(True), train(False))


# --- the answer hardly depends on the seed


def small_task(budget: int, seeds: int) -> list[LipschitzEstimate]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, 10, generator=generator)
    labels = (inputs @ torch.randn(10, 4, generator=generator)).argmax(1)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4))
    return [excite.find_learning_rate(model, loader, budget=budget, seed=seed) for seed in range(seeds)]


def test_with_a_third_of_the_budget_the_seeds_lie_in_each_other_s_intervals() -> None:
    found = small_task(660, 3)
    for low, high in (estimate.interval for estimate in found):
        assert all(low <= estimate.constant <= high for estimate in found)


@pytest.mark.slow
def test_the_answer_hardly_depends_on_the_seed() -> None:
    constants = [estimate.constant for estimate in small_task(2000, 6)]
    assert max(constants) <= 1.5 * min(constants)


def test_the_same_seed_is_the_same_answer() -> None:
    one, other = (
        excite.find_learning_rate(linear(), batches(), half_mse, sgd, budget=600, steps=40, seed=3) for _ in range(2)
    )
    assert one.constant == other.constant


# --- bounds and progress


def test_the_budget_is_not_exceeded_and_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    calls = 0

    def step(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return half_mse(model(batch[0]), batch[1])

    excite.find_learning_rate(
        linear(), batches(), optimizer=sgd, step=step, budget=300, steps=30, on_progress=lambda *told: seen.append(told)
    )
    assert 30 <= calls <= 300
    assert [done for done, _ in seen] == list(range(1, calls + 1))
    assert {total for _, total in seen} == {300}


def test_a_bar_and_a_listener_at_once_are_refused() -> None:
    with pytest.raises(InputError, match="pass one of them"):
        excite.find_learning_rate(linear(), batches(), half_mse, sgd, progress=True, on_progress=lambda *_: None)


def test_seconds_cut_the_budget() -> None:
    totals: set[int] = set()
    excite.find_learning_rate(
        linear(), batches(), half_mse, sgd, budget=10**9, seconds=0.5, on_progress=lambda _, total: totals.add(total)
    )
    assert max(totals) < 10**6


def test_no_time_at_all_is_said() -> None:
    with pytest.raises(InputError, match="too few for one short training; allow"):
        excite.find_learning_rate(linear(), batches(), half_mse, sgd, seconds=1e-9)


# --- errors with their cures


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


def once() -> Iterator[tuple[Tensor, Tensor]]:
    yield from batches()


@pytest.mark.parametrize(
    ("arguments", "options", "reason"),
    [
        ((Own(), batches()), {}, r'no reset_parameters\(\).*lambda: Net\(\).*weights="present"'),
        ((linear(), once()), {}, "only once; pass a DataLoader"),
        ((linear(), []), {}, "yields no batch"),
        ((linear(), ["text"]), {}, "type str is not understood; pass step="),
        ((linear(), [{"a": torch.ones(1)}]), {}, "entries a is called labels"),
        ((linear(), batches()), {"loss_fn": lambda output, _: output}, "must be one number; this has shape"),
        ((linear(), batches()), {"optimizer": lambda _params, lr: lr}, "optimizer made a float; pass"),
        ((linear(), batches()), {"weights": "old"}, 'weights="old" is neither'),
        (
            (linear(), batches()),
            {"optimizer": SGD(linear().parameters(), 0.1)},
            "holds none of this model's parameters",
        ),
        ((linear, batches()), {"weights": "present"}, "needs a model that has some"),
        ((linear, batches()), {"optimizer": SGD(linear().parameters(), 0.1)}, "needs an optimizer that is, too"),
    ],
)
def test_errors_name_the_cure(arguments: tuple[Any, ...], options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        excite.find_learning_rate(*arguments, **options)


def test_present_weights_work_where_fresh_ones_cannot() -> None:
    inputs = torch.ones(8, 1)
    estimate = excite.find_learning_rate(
        Own(), [(inputs, 3 * inputs)], half_mse, sgd, weights="present", budget=600, steps=40
    )
    assert estimate.constant == pytest.approx(1.0, rel=0.5)


def test_accumulated_batches_are_one_large_batch() -> None:
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    small, large = ([(x, x @ torch.ones(8, 1)) for x in inputs.split(size)] for size in (4, 8))  # type: ignore[no-untyped-call]

    def constant(batches: list[tuple[Tensor, Tensor]], accumulate: int = 1) -> float:
        return excite.find_learning_rate(
            nn.Linear(8, 1), batches, mse_loss, SGD, budget=300, accumulate=accumulate
        ).constant

    assert constant(small, accumulate=2) == pytest.approx(constant(large), rel=1e-3)
    assert constant(small) != pytest.approx(constant(large), rel=0.05)
