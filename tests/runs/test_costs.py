"""What an experiment costs, counted by hand and against torch's FLOPs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from excite import models
from excite.objectives import AWP, OBJECTIVES, NamedObjective
from excite.runs import costs as costs_module
from excite.runs import load
from excite.runs.costs import Workload, costs, count_work, flops, kept_bytes, peak_memory
from excite.runs.experiment import Model

SMALL = [
    *("data.train_examples=100", "data.test_examples=10", "training.epochs=4", "training.batch_size=30"),
    *(
        "record.slopes_per_epoch=0",
        "record.curvature_every=0",
        "lipschitz.steps=7",
    ),
    'attacks={mine={kind="pgd", eps=0.1, step=0.1, steps=6}}',
]


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what every operation inside takes, forwards and backwards, by torch's own formulas."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        formula: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


def work(*overrides: str, name: str = "mnist-sample") -> Workload:
    experiment = load(name, overrides=[*SMALL, *overrides])
    return count_work(experiment)


@pytest.mark.parametrize(
    "objective",
    [*(make() for make in OBJECTIVES.values()), AWP(on="pgd_at", steps=3)],
    ids=lambda objective: str(objective)[:30],
)
def test_passes_of_an_objective_match_its_flops(objective: NamedObjective) -> None:
    model = models.create("resnet8", input_shape=(3, 16, 16))
    images, labels = torch.rand(8, 3, 16, 16), torch.arange(8)
    with torch.no_grad(), Flops() as one_pass:
        model(images)
    objective(model, images, labels)  # the first step prepares a fast model, too
    with Flops() as step:
        torch.autograd.backward(objective(model, images, labels))
    assert step.total / one_pass.total == pytest.approx(objective.passes, rel=0.02)


def test_the_work_of_a_run_is_the_sum_of_its_stages() -> None:
    attack = 0.5 * (2 * 6 + 1)
    assert work() == Workload(
        training=3 * 4 * (100 * 3 + 10),  # arms, epochs; a pass over the training images, the test images after it
        estimating=10 * 7 * 30 * 3,
        attacking=3 * 10 * (1 + attack),
    )


def test_every_setting_counts() -> None:
    before = work()
    attack = 0.5 * (2 * 6 + 1)
    assert work('arms=["baseline"]') == Workload(4 * (100 * 3 + 10), 0, 10 * (1 + attack))
    assert work("lipschitz.method=epochs").estimating == 0
    assert work("lipschitz.steps=14").estimating == 2 * before.estimating
    assert work("training.steps=2").training == 3 * 4 * (60 * 3 + 10)
    assert work("training.steps=4").training == before.training  # the last batch of 100 images has 10
    assert work("record.slopes_per_epoch=9").training == before.training + 3 * 4 * (2 * 4 * 30 * 3)  # 4 steps an epoch
    assert work("record.curvature_every=3").training == before.training + 3 * (1 * 24 * 100 * 3)
    assert work("record.attacked_examples=5").training == before.training + 3 * 4 * 5 * attack
    best = work("record.best_every=2", "record.held_out_examples=20")  # after epochs 2 and 4
    assert best.training == before.training + 3 * 2 * 20 * attack
    assert best.attacking == 2 * before.attacking
    presets = work('estimators={other={method="edge", steps=14}}', 'arms=["baseline", "poe", "poe@other"]')
    assert presets.estimating == 3 * before.estimating
    trades = work('training.objective={kind="trades", steps=2}')
    assert trades.training == 3 * 4 * (100 * (2 * 2 + 1 + 6) + 10)
    search = work('arms=["baseline", "grid:5"]')
    budget = load("mnist-sample", overrides=SMALL).estimator_of().most_steps(4 * 4) * 30 * 3
    assert search.estimating == budget + 4 * 100 * 3


def test_estimating_by_edge_costs_its_budget() -> None:
    overrides = ["data.train_examples=5000", "training.epochs=100", "training.batch_size=50", "lipschitz=edge"]
    experiment = load("table-1-cifar10-resnet20", overrides=[*overrides, "record.slopes_per_epoch=0"])
    counted = count_work(experiment)
    assert counted.estimating == 0.15 * 100 * 5000 * 3


def test_a_batch_is_at_most_the_whole_data() -> None:
    few, all_at_once = (
        count_work(load("mnist-sample", overrides=["data.train_examples=500", f"training.batch_size={size}"]))
        for size in (500, 5000)
    )
    assert few == all_at_once


def test_self_training_counts_its_samples_and_its_teacher() -> None:
    experiment = load(
        "table-2-rst-small",
        overrides=["data.epoch_samples=100", "training.batch_size=30", "teacher.training.epochs=2"],
    )
    longer = load("table-2-rst-small", overrides=["data.epoch_samples=120", "training.batch_size=30"])
    assert count_work(experiment).training == count_work(longer).training  # four full batches
    assert count_work(experiment).teaching == 2 * 10_000 * 3


CPU = torch.device("cpu")


def test_a_sweep_costs_the_sum_of_its_runs() -> None:
    swept = load("mnist-sample", overrides=["sweep={seed=[0, 1], training.schedule.rate=[0.1, 0.2, 0.4]}"])
    one, several = costs({"plain": load("mnist-sample"), "swept": swept}, CPU).values()
    assert (one.sweep_runs, one.sweep_seconds) == (0, 0)
    assert several.sweep_runs == 6
    assert several.sweep_seconds == pytest.approx(6 * several.seconds)


def test_a_teacher_with_another_network_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "measured_speed", lambda _: 1e6)
    overrides = ["data.name=mnist-sample-1k+4k", 'training.objective={kind="rst"}', "data.epoch_samples=100"]
    overrides += ['arms=["baseline"]', "training.epochs=1", "record.curvature_every=0"]
    overrides += ['teacher.training={epochs=20, batch_size=64, schedule={kind="constant", rate=0.1}}']
    alike = load("mnist-sample", overrides=overrides)
    larger = load("mnist-sample", overrides=[*overrides, "teacher.model.name=resnet20"])
    prices = costs({"alike": alike, "larger": larger}, CPU)
    assert prices["alike"].work == prices["larger"].work
    longer = (prices["larger"].seconds - prices["alike"].seconds) / prices["alike"].work.teaching
    shape = (1, 28, 28)
    assert longer == pytest.approx((flops(Model(name="resnet20"), shape) - flops(alike.model, shape)) / 1e6)


@pytest.mark.parametrize(
    ("name", "input_shape", "millions"),
    [
        ("lenet5", (1, 28, 28), 0.172800 + 0.307200 + 0.061440 + 0.020160 + 0.001680),
        ("resnet20", (3, 32, 32), 81.63),  # 40.8 million multiply-adds, shortcuts included
        ("wrn-16-4", (3, 32, 32), 784.8),
    ],
)
def test_flops_are_twice_the_multiply_adds(name: str, input_shape: tuple[int, int, int], millions: float) -> None:
    assert flops(Model(name=name), input_shape) / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize("name", ["resnet8", "densenet40", "resnet50-bottleneck"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    with torch.device("meta"), torch.no_grad(), Flops() as counted:
        models.create(name).eval()(torch.zeros(1, 3, 32, 32))
    assert flops(Model(name=name), (3, 32, 32)) == counted.total


def test_measuring_the_speed_keeps_the_random_state() -> None:
    before = torch.get_rng_state()
    assert costs({"one": load("mnist-sample")}, CPU)["one"].seconds > 0
    assert torch.equal(torch.get_rng_state(), before)


def kept_by(network: torch.nn.Module, images: torch.Tensor) -> int:
    """The bytes that a real forward pass keeps."""
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = network(images)
    assert logits.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize(("name", "input_shape"), [("lenet5", (1, 28, 28)), ("resnet8", (3, 32, 32))])
def test_memory_per_image_is_what_a_larger_batch_keeps(name: str, input_shape: tuple[int, int, int]) -> None:
    network = models.create(name, input_shape=input_shape).train()
    small, large = (kept_by(network, torch.rand(size, *input_shape)) for size in (2, 6))
    per_image, weights = kept_bytes(Model(name=name), input_shape)
    assert per_image == pytest.approx((large - small) / 4, rel=0.01)
    assert weights == 4 * sum(parameter.numel() for parameter in network.parameters())


def test_parts_of_a_batch_need_less_memory() -> None:
    experiment = partial(load, "mnist-sample")
    per_image, weights = kept_bytes(Model(name="lenet5"), (1, 28, 28))
    whole, parts, trades = (
        peak_memory(experiment(overrides=["training.batch_size=1000", *changes])) - 3 * weights
        for changes in ([], ["training.accumulate=10"], ['training.objective="trades"'])
    )
    assert (whole, parts, trades) == (1000 * per_image, 100 * per_image, 2000 * per_image)


def test_figure_4s_largest_batch_fits_a_gpu_of_24_gb_in_parts() -> None:
    largest = ["model.name=resnet50", "training.batch_size=10_000"]
    whole, *parts = (peak_memory(load("figure-4", overrides=[*largest, f"training.accumulate={n}"])) for n in (1, 2, 4))
    assert whole > 24e9
    assert parts[0] < 24e9
    assert 1.65 * parts[1] < 24e9  # ResNet-8 needed 1.65 times its prediction
