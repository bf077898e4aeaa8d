"""List every name that an experiment file can use, and how long the shipped experiments take on this machine.

Work is counted in forward passes of one image; a backward pass counts as two. Seconds are passes times the FLOPs of a
pass, divided by one measured speed, and are right within a factor of two or three. No data set is read. The count is an
upper bound, except that half of the images are assumed to withstand each attack: those that fall leave it early.

Memory is what the layers keep for the backward pass, and weights, gradients and momentum. A process takes up to twice
as much, for intermediate results.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.filesize import decimal
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from excite import data, models
from excite.attacks import ATTACKS
from excite.data.augment import AUGMENTATIONS
from excite.data.batches import images_at_once, steps_per_epoch
from excite.lipschitz import ESTIMATORS
from excite.objectives import OBJECTIVES
from excite.objectives.protocol import TRAINING_PASSES
from excite.quantities import duration
from excite.randomness import drawing_from
from excite.runs.arms import ARMS, arm_named
from excite.runs.assemble import epoch_images, look_up
from excite.runs.experiment import Experiment, Model, catalogue, load
from excite.schedules import SCHEDULES

WITHSTAND = 0.5  # share of the images that is assumed to withstand an attack
CURVATURE_STEPS = 12 * 2  # Lanczos takes a gradient of a gradient twelve times; each costs two training steps
BATCH = 64  # images of the training step whose speed is measured


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
    """Count the work of one run with all its arms."""
    training, record, teacher = experiment.training, experiment.record, experiment.teacher
    arms, named = [arm_named(arm) for arm in experiment.arms], look_up(experiment)
    dataset, per_epoch = data.find(experiment.data.name), epoch_images(experiment)
    n_train = experiment.data.train_examples or dataset.train_images
    n_test = experiment.data.test_examples or dataset.test_images
    batch = min(training.batch_size, per_epoch)
    steps = steps_per_epoch(per_epoch, training.batch_size, training.steps)
    images = steps * batch if experiment.mixes else min(per_epoch, steps * batch)  # trained on per epoch
    passes = named.objective.passes  # per image
    attacks = [WITHSTAND * attack.passes(dataset.num_classes) for attack in named.attacks.values()]
    first_attack = sum(attacks[:1])

    epoch: float = (images + 2 * min(record.slopes_per_epoch, steps) * batch) * passes
    epoch += min(record.test_examples, n_test) + min(record.attacked_examples, n_test) * first_attack
    epoch += record.held_out_examples / record.best_every * first_attack if record.best_every else 0.0
    curvatures = training.epochs // record.curvature_every if record.curvature_every else 0
    one_training = training.epochs * epoch + curvatures * CURVATURE_STEPS * min(record.probe_examples, n_train) * passes

    n_weights = 1 + bool(record.best_every) + bool(record.average)  # the last, the best, averaged ones
    whole_training = training.epochs * steps
    names = dict.fromkeys([*experiment.needed_estimators(experiment.arms), *experiment.wanted_estimators()])
    estimators = [experiment.estimator_of(name) for name in names]
    estimate_steps = sum(estimator.usual_steps(whole_training) for estimator in estimators)
    most_steps = experiment.estimator_of().most_steps(whole_training)
    searches = sum((training.epochs * images + most_steps * batch) * passes for arm in arms if arm.rates)
    lesson = (teacher and teacher.training) or training
    taught = min(n_train, (lesson.steps or n_train) * lesson.batch_size)
    return Workload(
        training=len(arms) * one_training,
        estimating=searches + estimate_steps * batch * passes,
        attacking=len(arms) * n_weights * n_test * (1 + sum(attacks)),
        teaching=lesson.epochs * TRAINING_PASSES * taught if teacher else 0.0,
    )


def flops(model: Model, input_shape: tuple[int, int, int]) -> int:
    """Count the FLOPs of one image's forward pass, in convolutions and linear layers. Nothing is computed."""
    with torch.device("meta"), torch.no_grad():
        network = models.create(model.name, input_shape=input_shape, **model.options).eval()
        with FlopCounterMode(display=False) as counter:
            network(torch.zeros(1, *input_shape))
    return int(counter.get_total_flops())


def kept_bytes(model: Model, input_shape: tuple[int, int, int]) -> tuple[int, int]:
    """Return the bytes that a forward pass keeps per image for the backward pass, and those of the parameters."""
    kept: dict[int, Tensor] = {}  # by storage: several layers may keep the same tensor

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.device("meta"), torch.enable_grad():
        network = models.create(model.name, input_shape=input_shape, **model.options).train()
        weights = {tensor.untyped_storage()._cdata for tensor in [*network.parameters(), *network.buffers()]}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = network(torch.zeros(2, *input_shape))
        del logits
    images = sum(tensor.untyped_storage().nbytes() for storage, tensor in kept.items() if storage not in weights)
    return images // 2, sum(parameter.nbytes for parameter in network.parameters())


def peak_memory(experiment: Experiment) -> int:
    """Return the bytes of a training step: what a part of a batch keeps, and weights, gradients and momentum."""
    training, objective = experiment.training, look_up(experiment).objective
    per_image, weights = kept_bytes(experiment.model, data.find(experiment.data.name).input_shape)
    at_once = min(images_at_once(training.batch_size, training.accumulate), epoch_images(experiment))
    return at_once * per_image * getattr(objective, "losses", 1) + 3 * weights


def measured_speed(device: torch.device) -> float:
    """Return the FLOPs per second of training a small network."""
    model, input_shape = Model(name="resnet8"), (1, 28, 28)
    with drawing_from(0, device):
        network = models.create(model.name, input_shape=input_shape).to(device)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images, labels = torch.rand(BATCH, *input_shape, device=device), torch.arange(BATCH, device=device) % 10
        times = []
        for _ in range(2):
            started = time.perf_counter()
            torch.autograd.backward(cross_entropy(network(images), labels))
            torch.linalg.vector_norm(next(network.parameters()).grad).item()  # waits for an accelerator
            times.append(time.perf_counter() - started)
    return flops(model, input_shape) * TRAINING_PASSES * BATCH / min(times)


@dataclass(frozen=True)
class Price:
    """What one run takes, and about what all runs of the experiment's sweep take, if they are alike."""

    work: Workload
    seconds: float
    memory: int  # bytes, of one training step
    sweep_runs: int
    sweep_seconds: float


def costs(experiments: Mapping[str, Experiment], device: torch.device) -> dict[str, Price]:
    """Return what each experiment takes on `device`, whose speed is measured now."""
    speed, prices = measured_speed(device), {}
    for name, experiment in experiments.items():
        work, input_shape = count_work(experiment), data.find(experiment.data.name).input_shape
        total = work.passes * flops(experiment.model, input_shape)
        if experiment.teacher:
            total += work.teaching * flops(experiment.teacher.model or experiment.model, input_shape)
        n_runs = math.prod(map(len, experiment.sweep.values())) if experiment.sweep else 0
        prices[name] = Price(work, total / speed, peak_memory(experiment), n_runs, n_runs * total / speed)
    return prices


@dataclass(frozen=True)
class Listing:
    """Every name, and every experiment with its price, on one machine."""

    names: dict[str, list[str]]
    experiments: dict[str, Experiment]
    costs: dict[str, Price]
    machine: str

    def __str__(self) -> str:
        """Two lines per experiment and one per kind of name."""
        what = "how long one run takes, the memory of a training step, and how long the whole sweep takes"
        lines = [f"experiments: {what}, on this machine ({self.machine})"]
        for name, experiment in self.experiments.items():
            price, longest = self.costs[name], max(map(len, self.experiments))
            sweep = f"{price.sweep_runs} runs ≈ {duration(price.sweep_seconds)}" if price.sweep_runs else ""
            one_run = f"≈ {duration(price.seconds):10}  {decimal(price.memory):8}"
            lines += [f"{name:{longest}}  {one_run}  {sweep}".rstrip(), f"    {experiment.summary}"]
        lines += ["", *(f"{kind}: {', '.join(known)}" for kind, known in self.names.items())]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        experiments = {
            name: {"summary": experiment.summary, **asdict(self.costs[name])}
            for name, experiment in self.experiments.items()
        }
        return {"machine": self.machine, "experiments": experiments, **self.names}


def list_everything(device: torch.device, **more: Iterable[str]) -> Listing:
    """Measure the speed of `device` and list everything; `more` are names that this module does not know."""
    experiments = {name: load(name) for name in sorted(catalogue())}
    names: dict[str, Iterable[str]] = {
        "data": data.names(),
        "augmentations": AUGMENTATIONS,
        "models": models.MODELS,
        "objectives": OBJECTIVES,
        "schedules": SCHEDULES,
        "attacks": ATTACKS,
        "estimators": ESTIMATORS,
        "arms": ARMS,
        **more,
    }
    machine = f"cpu × {torch.get_num_threads()}" if device.type == "cpu" else str(device)
    lists = {kind: list(known) for kind, known in names.items()}
    return Listing(lists, experiments, costs(experiments, device), machine)
