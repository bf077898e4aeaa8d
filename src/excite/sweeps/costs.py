"""How long an experiment takes on this machine: its number of forward passes, divided by a measured speed.

Work is counted in forward passes of one image; a backward pass counts as two. No data set is read. The count is an
upper bound, except that half of the images are assumed to withstand each attack: those that fall leave it early.
"""

import functools
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite import data, models
from excite.data.batches import steps_per_epoch
from excite.objectives.protocol import TRAINING_PASSES
from excite.quantities import duration
from excite.randomness import drawing_from
from excite.runs.arms import OWN, arm_named
from excite.runs.assemble import look_up
from excite.runs.experiment import Experiment, Model, estimator_of, is_wanted, with_values
from excite.runs.stages.grid_search import HELD_OUT, MOST_HELD_OUT

WITHSTAND = 0.5  # share of the images that is assumed to withstand an attack
CURVATURE_STEPS = 12 * 2  # Lanczos takes a gradient of a gradient twelve times; each costs two training steps
MIN_SECONDS = 0.05  # of a training step whose speed is measured
MAX_BATCH = 256


@dataclass(frozen=True)
class Workload:
    """Forward passes of one image, by purpose; `teaching` counts those of the teacher's network."""

    training: float
    estimating: float = 0.0
    attacking: float = 0.0
    teaching: float = 0.0

    @property
    def passes(self) -> float:
        """Through the experiment's network."""
        return self.training + self.estimating + self.attacking


def count_work(experiment: Experiment) -> Workload:
    """The work of one run with all its arms."""
    training, record, sizes = experiment.training, experiment.record, Sizes.of(experiment)
    arms, named = [arm_named(arm) for arm in experiment.arms], look_up(experiment)
    per_image = named.objective.passes
    classes = data.find(experiment.data.name).num_classes
    attacks = [WITHSTAND * attack.passes(classes) for attack in named.attacks.values()]
    first_attack = sum(attacks[:1])

    slopes = min(record.slopes_per_epoch, sizes.steps) * sizes.batch
    measured = min(record.test_examples, sizes.test) + min(record.attacked_examples, sizes.test) * first_attack
    curvatures = training.epochs // record.curvature_every if record.curvature_every else 0
    probe = min(record.probe_examples, sizes.train)
    probed = probe * per_image if record.gradient == "probe" else 0
    probed += probe * TRAINING_PASSES if record.input_gradients else 0
    one_training = training.epochs * ((sizes.epoch + slopes) * per_image + measured + probed)
    one_training += curvatures * CURVATURE_STEPS * probe * per_image
    looks = math.ceil(training.epochs / record.best_every) if record.best_every else 0
    one_training += looks * record.held_out_examples * first_attack

    def estimating(by: str) -> float:
        steps = estimator_of(experiment, by).usual_steps(training.epochs * sizes.steps)
        return steps * sizes.batch * per_image

    wanted = {OWN} if is_wanted(experiment) else set()
    estimates = sum(map(estimating, wanted.union(arm.estimator for arm in arms if arm.estimator is not None)))
    held_out = min(HELD_OUT * sizes.train, MOST_HELD_OUT)
    most = estimator_of(experiment).most_steps(training.epochs * sizes.steps)
    one_search = (training.epochs * sizes.epoch + most * sizes.batch) * per_image
    searches = [one_search + arm.rates * held_out * (1 + first_attack) for arm in arms if arm.rates]
    tests = 2 if looks else 1  # the last weights, and the best ones
    return Workload(
        training=len(arms) * one_training,
        estimating=sum(searches) + estimates,
        attacking=len(arms) * tests * sizes.test * (1 + sum(attacks)),
        teaching=_teaching(experiment, sizes),
    )


@dataclass(frozen=True)
class Sizes:
    """Training images, test images, images and steps per epoch, and images per batch."""

    train: int
    test: int
    epoch: int
    steps: int
    batch: int

    @classmethod
    def of(cls, experiment: Experiment) -> "Sizes":
        known, batch = data.find(experiment.data.name), experiment.training.batch_size
        train = experiment.data.train_examples or known.train_images
        images = experiment.epoch_images(train)
        steps = steps_per_epoch(images, batch, experiment.training.steps)
        epoch = steps * batch if experiment.mixes else min(images, steps * batch)
        test = experiment.data.test_examples or known.test_images
        return cls(train, test, epoch, steps, min(batch, images))


def _teaching(experiment: Experiment, sizes: Sizes) -> float:
    if experiment.teacher is None:
        return 0.0
    training = experiment.teacher.training or experiment.training
    return training.epochs * TRAINING_PASSES * min(sizes.train, (training.steps or sizes.train) * training.batch_size)


@dataclass(frozen=True)
class Price:
    """What one run takes, and what all runs of the experiment's sweep take."""

    work: Workload
    seconds: float
    sweep_runs: int
    sweep_seconds: float

    def __str__(self) -> str:
        return f"≈ {duration(self.seconds)}"


def costs(experiments: Mapping[str, Experiment], device: torch.device) -> dict[str, Price]:
    """What each experiment takes on `device`, whose speed is measured now."""
    speeds = {network: network.flops() * _passes_per_second(network, device) for network in MEASURED}

    def seconds(run: Experiment, passes: float, model: Model) -> float:
        network = Network(model.name, data.find(run.data.name).input_shape, tuple(sorted(model.options.items())))
        flops = max(1, network.flops())
        nearest = min(MEASURED, key=lambda measured: abs(math.log(measured.flops() / flops)))
        return passes * flops / speeds[nearest]

    def total(run: Experiment, work: Workload) -> float:
        teacher = (run.teacher and run.teacher.model) or run.model
        return seconds(run, work.passes, run.model) + seconds(run, work.teaching, teacher)

    prices = {}
    for name, experiment in experiments.items():
        work, swept = count_work(experiment), list(sweep_runs(experiment))
        sweep_seconds = sum(total(run, count_work(run)) for run in swept)
        prices[name] = Price(work, total(experiment, work), len(swept), sweep_seconds)
    return prices


def sweep_runs(experiment: Experiment) -> Iterator[Experiment]:
    """Every combination of the sweep's values."""
    if experiment.sweep:
        for values in itertools.product(*experiment.sweep.values()):
            yield with_values(experiment, dict(zip(experiment.sweep, values, strict=True)))


@dataclass(frozen=True)
class Network:
    """A network with ten classes; how many there are hardly matters."""

    name: str
    input_shape: tuple[int, int, int] = (3, 32, 32)
    options: tuple[tuple[str, Any], ...] = ()

    def create(self) -> nn.Module:
        return models.create(self.name, input_shape=self.input_shape, **dict(self.options))

    def flops(self) -> int:
        """Of the forward pass of one image: those of its convolutions and linear layers. Nothing is computed."""
        return _flops(self, models.MODELS.get(self.name))


@functools.cache
def _flops(network: Network, _: object) -> int:
    total = 0

    def add(layer: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        total += 2 * output.numel() * layer.get_parameter("weight")[0].numel()

    with torch.device("meta"), torch.no_grad():
        model = network.create().eval()
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(add)
        model(torch.zeros(1, *network.input_shape))
    return total


MEASURED = (Network("lenet5", (1, 28, 28)), Network("resnet8"))  # one is limited by memory, one by computing


def _passes_per_second(network: Network, device: torch.device) -> float:
    """Train on batches four times as large as the one before, until a step takes long enough to be measured."""
    with drawing_from(0, device):
        model = network.create().to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        size, seconds = 4, 0.0
        while seconds < MIN_SECONDS and size < MAX_BATCH:
            size *= 4
            images = torch.rand(size, *network.input_shape, device=device).contiguous(memory_format=torch.channels_last)
            seconds = min(_step_seconds(model, images) for _ in range(2))
    return TRAINING_PASSES * size / seconds


def _step_seconds(model: nn.Module, images: Tensor) -> float:
    labels, started = torch.zeros(len(images), dtype=torch.int64, device=images.device), time.perf_counter()
    torch.autograd.backward(cross_entropy(model(images), labels))
    torch.linalg.vector_norm(next(model.parameters()).grad).item()  # waits for an accelerator
    return time.perf_counter() - started
