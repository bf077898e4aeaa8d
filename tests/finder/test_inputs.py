"""The caller's objects are restored bit for bit, and fresh weights are distributed as those of a new model."""

import copy
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset, get_worker_info

import excite
from excite.finder.inputs import endless, make_fresh
from tests.finder.test_find_learning_rate import batches, half_mse, linear, sgd

ROOT = Path(__file__).parents[2]
DIMENSIONS = 6


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


def test_fresh_weights_equal_those_of_a_new_model() -> None:
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


class WithAClassToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.class_token, self.positions = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.arange(60.0).view(3, 20))


def test_entries_that_no_layer_draws_are_permuted() -> None:
    torch.manual_seed(0)
    model = WithAClassToken()
    before, layer = model.positions.detach().clone(), model.layer.weight.detach().clone()
    assert make_fresh(model) == ["positions"]
    assert not torch.equal(model.positions, before)
    assert torch.equal(model.positions.flatten().sort().values, before.flatten())
    assert not model.class_token.any()
    assert not torch.isclose(model.layer.weight, layer).any()


def test_a_layer_may_draw_ones_where_its_weights_are_zero() -> None:
    norm = nn.BatchNorm1d(3)
    nn.init.zeros_(norm.weight)
    make_fresh(norm)
    assert (norm.weight == 1).all()


@pytest.mark.parametrize(
    "wrap", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm], ids=["weight", "spectral"]
)
def test_a_parametrized_layer_gets_new_finite_weights(wrap: Any) -> None:
    torch.manual_seed(0)
    model = wrap(nn.Linear(3, 4))
    before = model.weight.detach().clone()
    assert make_fresh(model)
    assert model.weight.isfinite().all()
    assert not torch.isclose(model.weight, before).all()


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
def test_restores_everything_bit_for_bit(weights: Any, fails: bool) -> None:
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
def test_restores_a_loss_with_weights(builds: bool) -> None:
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


def test_restores_the_generator_of_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[Any] = [torch.zeros(1)]
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.manual_seed", states.append)
    monkeypatch.setattr("torch.cuda.get_rng_state", lambda _: states[-1])
    monkeypatch.setattr("torch.cuda.set_rng_state", lambda state, _: states.append(state))
    excite.find_learning_rate(linear(), batches(), half_mse, sgd, budget=100, steps=20)
    assert len(states) > 2
    assert states[-1] is states[0]


def test_training_continues_as_without_the_search() -> None:
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


def numbered(workers: int = 0, *, persistent: bool = False, seeded: bool = True) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(8) if seeded else None
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": persistent, "generator": generator}
    return DataLoader(TensorDataset(torch.arange(12)), 4, shuffle=True, **options)


@pytest.mark.parametrize("seeded", [True, False])
def test_workers_of_a_loader_change_neither_the_order_nor_other_random_numbers(seeded: bool) -> None:
    used = numbered(1, persistent=True, seeded=seeded)
    epoch = iter(used)
    orders = []
    for loader in (numbered(seeded=seeded), numbered(1, seeded=seeded), used):
        torch.manual_seed(0)
        batches = itertools.islice(endless(loader, 5, 0), 5)  # an epoch has three
        orders.append([(batch.tolist(), float(torch.rand(()))) for (batch,) in batches])
    assert orders[0] == orders[1] == orders[2]
    assert len([*epoch]) == 3  # the caller's loop goes on


class Dying(Dataset[Tensor]):
    """Ends the worker that reads its last entry."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        if index == 11 and get_worker_info():
            os._exit(3)
        return torch.tensor(index)


class Unreadable(Dying):
    def __getitem__(self, index: int) -> Tensor:
        raise ConnectionError("no such image")


READ_UNTIL_A_WORKER_DIES = """
import itertools, signal
from torch.utils.data import DataLoader
from excite.errors import ExciteError
from excite.finder.inputs import endless
from tests.finder.test_inputs import Dying
try:
    [*itertools.islice(endless(DataLoader(Dying(), 4, num_workers=1), 0), 3)]
except ExciteError as error:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler may raise its error again, even while we print
    print(error)
"""


def test_a_worker_that_dies_is_named() -> None:
    """In a process of its own, whose handlers may be changed."""
    command = [sys.executable, "-c", READ_UNTIL_A_WORKER_DIES]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert "num_workers=0" in done.stdout


def test_an_error_of_the_data_set_stays_as_it_is() -> None:
    with pytest.raises(ConnectionError, match="no such image"):
        next(endless(DataLoader(Unreadable(), 4, num_workers=1), 0))
