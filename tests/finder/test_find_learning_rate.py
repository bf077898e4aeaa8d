"""find_learning_rate finds a known edge with all kinds of batches and optimizers."""

import copy
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as of_torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset

import excite
from excite.errors import InputError
from excite.lipschitz import LipschitzEstimate
from tests.test_rescaling import Floored

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


def compiled() -> nn.Module:
    wrapped: Any = torch.compile(linear(), backend="eager")
    return wrapped  # type: ignore[no-any-return]


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
    "dicts, DataParallel": (
        lambda: nn.DataParallel(TwoInputs()),
        lambda: [{"left": x, "right": 0 * x, "target": y} for x, y in batches()],
        {},
    ),
    "dicts, compiled": (
        compiled,
        lambda: [{"image": x, "labels": y} for x, y in batches()],
        {},
    ),
    "dicts, the own loss of a model in DataParallel": (
        lambda: nn.DataParallel(Named()),
        lambda: [{"inputs": x, "labels": y} for x, y in batches()],
        {},
    ),
    "dicts, the model's own loss": (Named, lambda: [{"inputs": x, "labels": y} for x, y in batches()], {}),
    "a step function": (
        linear,
        lambda: [SimpleNamespace(x=x, y=y, to=lambda _device, x=x, y=y: (x, y)) for x, y in batches()],
        {"step": lambda model, batch: half_mse(model(batch[0]), batch[1])},
    ),
}


@pytest.mark.parametrize(("build", "loader", "options"), KINDS.values(), ids=KINDS.keys())
def test_edge_of_a_quadratic_for_all_kinds_of_batches(
    build: Callable[[], nn.Module], loader: Callable[[], list[Any]], options: dict[str, Any]
) -> None:
    estimate = excite.find_learning_rate(build(), loader(), half_mse, sgd, budget=400, steps=40, **options)
    assert estimate.interval[0] <= 1.0 <= estimate.interval[1]
    assert estimate.details["threshold"] == pytest.approx(2.0, rel=0.3)
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
    assert estimate.details["threshold"] == pytest.approx(2.0, rel=0.3)


def test_copies_the_class_and_groups_of_an_optimizer() -> None:
    """Half of the weights learn at a tenth of the rate, so the edge is where the other half's is."""
    model = nn.Sequential(nn.Linear(DIMENSIONS, 1, bias=False), nn.Linear(1, 1))
    mine = SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1].parameters(), "lr": 0.05}], momentum=0.3
    )
    before = copy.deepcopy(mine.state_dict())
    estimate = excite.find_learning_rate(model, batches(), half_mse, mine, budget=600, steps=40)
    assert estimate.learning_rate() > 0
    assert mine.state_dict() == before


class Plain(Optimizer):
    """As people write one for themselves: without a closure."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad)


class Deaf(Plain):
    """Takes a closure and does not look at it."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()


@pytest.mark.parametrize("optimizer", [Plain, Deaf])
def test_an_optimizer_need_not_take_a_closure(optimizer: Any) -> None:
    mine, torchs = (
        excite.find_learning_rate(linear(), batches(), half_mse, kind, budget=300).constant for kind in (optimizer, SGD)
    )
    assert mine == torchs


# --- fresh weights


def small_task(budget: int, seeds: int) -> list[LipschitzEstimate]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, 10, generator=generator)
    labels = (inputs @ torch.randn(10, 4, generator=generator)).argmax(1)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4))
    return [excite.find_learning_rate(model, loader, budget=budget, seed=seed) for seed in range(seeds)]


def test_with_a_third_of_the_budget_the_intervals_of_three_seeds_overlap() -> None:
    one, other, third = small_task(660, 3)
    assert one.overlaps(other)
    assert one.overlaps(third)
    assert other.overlaps(third)


def recorded_rates(**options: Any) -> list[float]:
    """The rates that the steps of the first short training were taken at."""
    rates: list[float] = []

    class Watched(SGD):
        def step(self, closure: Any = None) -> Any:
            rates.append(float(self.param_groups[0]["lr"]))
            return super().step(closure)

    model = linear()
    optimizer = Watched(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    given: dict[str, Any] = {"scheduler": scheduler, "scheduler_steps": 4} if options.pop("scheduled", False) else {}
    excite.find_learning_rate(model, batches(), half_mse, optimizer, budget=40, steps=40, **given, **options)
    return rates


def test_a_short_training_goes_through_the_whole_schedule() -> None:
    assert recorded_rates() == [0.1] * 40
    assert recorded_rates(scheduled=True) == pytest.approx([0.1] * 20 + [0.01] * 20)


@pytest.mark.parametrize("given", [{"scheduler_steps": 4}, {"scheduled": True, "scheduler_steps": None}])
def test_scheduler_needs_scheduler_steps(given: dict[str, Any]) -> None:
    with pytest.raises((InputError, TypeError), match="scheduler_steps"):
        recorded_rates(**given)


@pytest.mark.slow
def test_the_answer_hardly_depends_on_the_seed() -> None:
    constants = [estimate.constant for estimate in small_task(2000, 6)]
    assert max(constants) <= 1.5 * min(constants)


def test_same_seed_gives_the_same_estimate() -> None:
    one, other = (
        excite.find_learning_rate(linear(), batches(), half_mse, sgd, budget=600, steps=40, seed=3) for _ in range(2)
    )
    assert one.constant == other.constant


# --- bounds and progress


def test_stays_within_the_budget_and_reports_progress() -> None:
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


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ({}, 2000),
        ({"epochs": 50}, 50 * 8 // 4),
        ({"epochs": 50, "accumulate": 3}, 50 * 3 // 4),
        ({"total_steps": 600}, 150),
        ({"total_steps": 10**6}, 5000),
        ({"total_steps": 600, "budget": 300}, 300),
    ],
)
def test_the_budget_is_a_quarter_of_a_training(given: dict[str, int], budget: int) -> None:
    totals = set()
    taken = 0

    def on_progress(done: int, total: int) -> None:
        nonlocal taken
        taken = done
        totals.add(total)

    excite.find_learning_rate(linear(), batches(), half_mse, sgd, on_progress=on_progress, **given)  # type: ignore[arg-type]
    assert totals == {budget}
    assert taken <= budget


def test_a_bar_is_shown_only_if_it_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    excite.find_learning_rate(linear(), batches(), half_mse, sgd, budget=300, progress=True)
    assert "largest convergent rate" in capsys.readouterr().err
    excite.find_learning_rate(linear(), batches(), half_mse, sgd, budget=300)
    assert not capsys.readouterr().err


def test_a_search_starts_at_the_largest_rate_of_the_scheduler() -> None:
    model = linear()
    scheduler = of_torch.OneCycleLR(SGD(model.parameters(), 0.3, momentum=0.9), 0.25, 40)
    estimate = excite.find_learning_rate(
        model, batches(), half_mse, scheduler=scheduler, scheduler_steps=40, budget=100
    )
    assert estimate.details["rates"][0] == 0.25
    assert "momentum=0.95" in estimate.details["optimizer"]


def test_validation_prefers_what_the_score_prefers() -> None:
    """The score is the distance from the start, so the largest rate is best; model and modes are left as they were."""
    layer = nn.Linear(DIMENSIONS, 1, bias=False)
    model = nn.Sequential(nn.BatchNorm1d(DIMENSIONS), layer)
    model[0].eval()
    start = layer.weight.detach().clone()
    modes: set[bool] = set()
    scores: list[float] = []

    def validate(model: nn.Module) -> float:
        modes.add(model.training)
        scores.append(float((layer.weight - start).norm()))
        return scores[-1]

    estimate = excite.find_learning_rate(
        model, batches(), half_mse, sgd, weights="present", budget=600, steps=40, validate=validate
    )
    tried = estimate.details["validation"]
    assert [run["rate"] for run in tried] == [estimate.learning_rate(multiple) for multiple in (0.25, 0.5, 1, 2)]
    assert [run["score"] for run in tried] == scores
    assert estimate.best_multiple == tried[scores.index(max(scores))]["multiple"]
    assert f"{estimate.best_multiple:g}/L did best" in str(estimate)
    assert LipschitzEstimate.from_json(estimate.to_json()).best_multiple == estimate.best_multiple
    assert modes == {False}
    assert [module.training for module in model.modules()] == [True, False, True]
    assert torch.equal(layer.weight, start)


def test_without_validation_no_multiple_is_best() -> None:
    estimate = excite.find_learning_rate(
        linear(), batches(), half_mse, sgd, budget=600, steps=40, validate=lambda _: math.nan
    )
    assert [run["score"] for run in estimate.details["validation"]] == [None] * 4
    with pytest.raises(InputError, match="validate"):
        estimate.best_multiple  # noqa: B018
    with pytest.raises(InputError, match="score"):
        excite.find_learning_rate(linear(), batches(), half_mse, sgd, budget=600, validate=0.9)  # type: ignore[arg-type]


def test_seconds_cut_the_budget() -> None:
    totals: set[int] = set()
    excite.find_learning_rate(
        linear(), batches(), half_mse, sgd, budget=10**9, seconds=0.5, on_progress=lambda _, total: totals.add(total)
    )
    assert max(totals) < 10**6


def test_refuses_too_little_time() -> None:
    with pytest.raises(InputError, match="seconds="):
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
    ("arguments", "options", "keyword"),
    [
        ((linear(), batches()), {"epochs": 1, "total_steps": 10}, "not both"),
        ((linear(), batches()), {"scheduler": "cosine", "scheduler_steps": 4}, "scheduler"),
        ((linear(), iter(batches())), {"epochs": 1}, "total_steps"),
        ((linear(), once()), {}, "DataLoader"),
        ((linear(), []), {}, "drop_last"),
        ((linear(), ["text"]), {}, "step="),
        ((linear(), [{"a": torch.ones(1)}]), {}, "labels"),
        ((linear(), batches()), {"weights": "old"}, "present"),
        (
            (linear(), batches()),
            {"optimizer": SGD(linear().parameters(), 0.1)},
            "parameters",
        ),
        ((linear, batches()), {"weights": "present"}, "present"),
        ((linear, batches()), {"optimizer": SGD(linear().parameters(), 0.1)}, "lambda params, lr"),
    ],
)
def test_errors_name_the_cure(arguments: tuple[Any, ...], options: dict[str, Any], keyword: str) -> None:
    with pytest.raises(InputError, match=keyword):
        excite.find_learning_rate(*arguments, **options)


@pytest.mark.parametrize(
    ("build", "given", "keyword"),
    [
        (lambda sgd: of_torch.StepLR(sgd, 3), {}, "epochs"),
        (of_torch.LinearLR, {"scheduler_steps": 3}, "scheduler_steps"),
        (lambda sgd: of_torch.OneCycleLR(sgd, 0.1, 10), {"total_steps": 40}, "scheduler_steps"),
        (lambda sgd: of_torch.MultiplicativeLR(sgd, lambda _: 2.0), {"epochs": 5}, "without end"),
        (Floored, {"epochs": 5}, "absolute"),
    ],
)
def test_a_scheduler_that_cannot_be_rescaled_is_refused_before_the_search(
    build: Any, given: dict[str, Any], keyword: str
) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        raise AssertionError("a step was taken")

    model = linear()
    with pytest.raises(InputError, match=keyword):
        excite.find_learning_rate(
            model, batches(), step=step, scheduler=build(SGD(model.parameters(), 0.1, momentum=0.9)), **given
        )


def test_present_weights_start_where_they_are() -> None:
    inputs = torch.ones(8, 1)
    estimate = excite.find_learning_rate(
        Own(), [(inputs, 3 * inputs)], half_mse, sgd, weights="present", budget=600, steps=40
    )
    assert estimate.details["threshold"] == pytest.approx(2.0, rel=0.3)


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_that_the_loop_keeps_in_eval_mode_stays_in_it(training: bool) -> None:
    model = nn.Sequential(nn.BatchNorm1d(DIMENSIONS), linear()).train(training)
    model[0].eval()
    modes = set()

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        modes.add(tuple(module.training for module in model.modules()))
        return half_mse(model(batch[0]), batch[1])

    excite.find_learning_rate(model, batches(), optimizer=sgd, step=step, budget=160)
    assert modes == {(True, not training, True)}


def test_accumulated_batches_are_one_large_batch() -> None:
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    small, large = ([(x, x @ torch.ones(8, 1)) for x in inputs.split(size)] for size in (4, 8))  # type: ignore[no-untyped-call]

    def constant(batches: list[tuple[Tensor, Tensor]], accumulate: int = 1) -> float:
        return excite.find_learning_rate(
            nn.Linear(8, 1), batches, mse_loss, SGD, budget=300, accumulate=accumulate
        ).constant

    assert constant(small, accumulate=2) == pytest.approx(constant(large), rel=1e-3)
    assert constant(small) != pytest.approx(constant(large), rel=0.05)


def test_refuses_a_distributed_model() -> None:
    """The group is torch's own for trying things out: a second process that never answers."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        wrapped = DistributedDataParallel(nn.Linear(2, 1))
        with pytest.raises(InputError, match="accumulate=2"):
            excite.find_learning_rate(wrapped, [], mse_loss)
    finally:
        dist.destroy_process_group()


def test_layers_in_bfloat16_and_losses_in_float32_have_the_same_edge() -> None:
    formats: set[tuple[torch.dtype, bool]] = set()

    def watched(output: Tensor, target: Tensor) -> Tensor:
        formats.add((output.dtype, torch.is_autocast_enabled("cpu")))
        return half_mse(output, target)

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        output = model(batch[0])
        formats.add((output.dtype, torch.is_autocast_enabled("cpu")))
        return half_mse(output.float(), batch[1])

    for options in ({"loss_fn": watched}, {"step": step}):
        found = excite.find_learning_rate(
            linear(), batches(), optimizer=sgd, budget=400, steps=40, precision="bf16", **options
        )
        assert found.interval[0] <= 1.0 <= found.interval[1]
    assert formats == {(torch.float32, False), (torch.bfloat16, True)}
    with pytest.raises(InputError, match="GPU"):
        excite.find_learning_rate(linear(), batches(), half_mse, sgd, precision="tf32")
