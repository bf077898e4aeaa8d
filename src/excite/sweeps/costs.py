"""List every name that an experiment file can use, and how long the shipped experiments take on this machine.

Work is counted in forward passes of one image; a backward pass counts as two. Seconds are passes times the FLOPs of a
pass, divided by a measured speed. No data set is read. The count is an upper bound, except that half of the images are
assumed to withstand each attack: those that fall leave it early.
"""

import functools
import itertools
import math
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite import data, models
from excite.attacks import ATTACKS
from excite.data.augment import AUGMENTATIONS
from excite.data.batches import steps_per_epoch
from excite.lipschitz import ESTIMATORS
from excite.objectives import OBJECTIVES
from excite.objectives.protocol import TRAINING_PASSES
from excite.quantities import duration
from excite.randomness import drawing_from
from excite.runs.arms import ARMS, OWN, arm_named
from excite.runs.assemble import look_up
from excite.runs.experiment import Experiment, Model, catalogue, estimator_of, is_wanted, load, with_values
from excite.runs.stages.rate import HELD_OUT, MOST_HELD_OUT
from excite.schedules import SCHEDULES

WITHSTAND = 0.5  # share of the images that is assumed to withstand an attack
CURVATURE_STEPS = 12 * 2  # Lanczos takes a gradient of a gradient twelve times; each costs two training steps
MIN_SECONDS = 0.05  # of a training step whose speed is measured


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


def count_work(experiment: Experiment) -> Workload:
    """Count the work of one run with all its arms."""
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

    whole_training = training.epochs * sizes.steps
    estimators = {arm.estimator for arm in arms} - {None} | ({OWN} if is_wanted(experiment) else set())
    estimate_steps = sum(estimator_of(experiment, name or OWN).usual_steps(whole_training) for name in estimators)
    held_out = min(HELD_OUT * sizes.train, MOST_HELD_OUT)
    most = estimator_of(experiment).most_steps(whole_training)
    one_search = (training.epochs * sizes.epoch + most * sizes.batch) * per_image
    searches = [one_search + arm.rates * held_out * (1 + first_attack) for arm in arms if arm.rates]
    teaching = 0.0
    if experiment.teacher is not None:
        lesson = experiment.teacher.training or training
        images = min(sizes.train, (lesson.steps or sizes.train) * lesson.batch_size)
        teaching = lesson.epochs * TRAINING_PASSES * images
    tests = 2 if looks else 1  # the last weights, and the best ones
    return Workload(
        training=len(arms) * one_training,
        estimating=sum(searches) + estimate_steps * sizes.batch * per_image,
        attacking=len(arms) * tests * sizes.test * (1 + sum(attacks)),
        teaching=teaching,
    )


@dataclass(frozen=True)
class Network:
    """A network with ten classes; how many there are hardly matters."""

    name: str
    input_shape: tuple[int, int, int] = (3, 32, 32)
    options: tuple[tuple[str, Any], ...] = ()

    def create(self) -> nn.Module:
        return models.create(self.name, input_shape=self.input_shape, **dict(self.options))

    def flops(self) -> int:
        """Count the FLOPs of one image's forward pass, in convolutions and linear layers. Nothing is computed."""
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
        for size in (16, 64, 256):
            images = torch.rand(size, *network.input_shape, device=device).contiguous(memory_format=torch.channels_last)
            labels = torch.zeros(size, dtype=torch.int64, device=device)
            times = []
            for _ in range(2):
                started = time.perf_counter()
                torch.autograd.backward(cross_entropy(model(images), labels))
                torch.linalg.vector_norm(next(model.parameters()).grad).item()  # waits for an accelerator
                times.append(time.perf_counter() - started)
            if min(times) > MIN_SECONDS:
                break
    return TRAINING_PASSES * size / min(times)


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
    """Return what each experiment takes on `device`, whose speed is measured now."""
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
        work, swept = count_work(experiment), list(_sweep_runs(experiment))
        sweep_seconds = sum(total(run, count_work(run)) for run in swept)
        prices[name] = Price(work, total(experiment, work), len(swept), sweep_seconds)
    return prices


def _sweep_runs(experiment: Experiment) -> Iterator[Experiment]:
    if experiment.sweep:
        for values in itertools.product(*experiment.sweep.values()):
            yield with_values(experiment, dict(zip(experiment.sweep, values, strict=True)))


@dataclass(frozen=True)
class Listing:
    names: dict[str, list[str]]
    experiments: dict[str, Experiment]
    costs: dict[str, Price]
    machine: str

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return one line per experiment and one per kind of name; if `width` is too small, summaries go below."""
        rows = [("", "one run", "its sweep", "")]
        for name, experiment in self.experiments.items():
            cost = self.costs[name]
            sweep = f"{cost.sweep_runs} runs ≈ {duration(cost.sweep_seconds)}" if cost.sweep_runs else ""
            rows.append((name, str(cost), sweep, experiment.summary))
        widths = [*(max(len(row[column]) for row in rows) for column in range(3)), 0]
        table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        if width is not None and max(map(len, table)) > width:
            heads = [line[: sum(widths) + 4].rstrip() for line in table]
            table = [line for head, row in zip(heads, rows, strict=True) for line in (head, f"    {row[3]}".rstrip())]
        heading = f"experiments, and how long they take on this machine ({self.machine}):"
        lines = [
            heading,
            *filter(None, table),
            "",
            *(f"{kind}: {', '.join(known)}" for kind, known in self.names.items()),
        ]
        if width is not None:
            lines = [textwrap.fill(line, width, subsequent_indent="    ", break_on_hyphens=False) for line in lines]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        experiments = {
            name: {"summary": experiment.summary, **asdict(self.costs[name])}
            for name, experiment in self.experiments.items()
        }
        return {"machine": self.machine, "experiments": experiments, **self.names}


def list_everything(device: torch.device, *, figures: Iterable[str] = ()) -> Listing:
    """Measure the speed of `device` and list everything; `figures` are names that this module does not know."""
    experiments = {name: load(name) for name in sorted(catalogue())}
    names = {
        "data": list(data.names()),
        "augmentations": list(AUGMENTATIONS),
        "models": list(models.MODELS),
        "objectives": list(OBJECTIVES),
        "schedules": list(SCHEDULES),
        "attacks": list(ATTACKS),
        "estimators": list(ESTIMATORS),
        "arms": list(ARMS),
        "figures": list(figures),
    }
    machine = f"cpu × {torch.get_num_threads()}" if device.type == "cpu" else str(device)
    return Listing(names, experiments, costs(experiments, device), machine)
