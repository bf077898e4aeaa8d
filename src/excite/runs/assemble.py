"""Build what an experiment names (data, model, objective, schedule, attacks), and check it before anything runs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from excite import models
from excite.attacks import Attack
from excite.attacks.given import as_attacks
from excite.data import Split, find
from excite.data.augment import AUGMENTATIONS, Augmentation
from excite.data.batches import (
    Mixture,
    TrainingData,
    epoch_batches,
    images_at_once,
    resident,
    steps_per_epoch,
)
from excite.data.catalog import is_own, load_once
from excite.errors import InputError
from excite.objectives import OBJECTIVES, NamedObjective
from excite.precision import check_precision, choose_kernels
from excite.randomness import derive_seed, device_of, drawing_from, drawn_from, step_generators, usable_device
from excite.registry import build, kind_and_options, lookup
from excite.runs.experiment import Experiment
from excite.schedules import SCHEDULES, Schedule
from excite.trace import Recorder
from excite.training import descend, keep_freed_memory

NOISE = -1  # in the seed of images that are drawn to measure the noise of batches


@dataclass(frozen=True)
class Named:
    """What an experiment names and what can be built without its data."""

    objective: NamedObjective
    schedule: Schedule  # the baseline's γᵏ
    augment: Augmentation
    attacks: Mapping[str, Attack]


def look_up(experiment: Experiment) -> Named:
    training = experiment.training
    schedule = build("schedule", SCHEDULES, *kind_and_options("training.schedule", training.schedule))
    asked = {"kind": training.objective} if isinstance(training.objective, str) else training.objective
    objective = build("objective", OBJECTIVES, *kind_and_options("training.objective", asked))
    augment = lookup("augmentation", AUGMENTATIONS, experiment.data.augment)
    return Named(objective, schedule, augment, as_attacks(experiment.attacks))


@dataclass(frozen=True)
class Parts(Named):
    """Everything that the stages of a run need."""

    experiment: Experiment
    train: Split
    test: Split
    new_model: Callable[..., nn.Module]  # the same initial weights at every call, others for `draw=1`, `draw=2`, …
    held_out: Split | None = None  # training images that no arm trains on, for choosing its best weights
    pseudo_labelled: Callable[[], Split] | None = None  # called when training needs them: a teacher may be slow

    @cached_property
    def training_set(self) -> TrainingData:
        """What every arm trains on."""
        return self.mixed(self.train)

    def prepare(self) -> None:
        """Make everything that training needs, such as a teacher's labels."""
        _ = self.training_set

    def mixed(self, labelled: Split) -> TrainingData:
        """Return the labelled images, mixed with the pseudo-labelled ones if the experiment has any."""
        if self.pseudo_labelled is None:
            return labelled
        return Mixture(labelled, self.pseudo_labelled(), self.experiment.data.epoch_samples)

    @property
    def largest_batch(self) -> int | None:
        """All images of an epoch; None if there is no upper limit, because pseudo-labelled images fill any batch."""
        return None if self.experiment.mixes else len(self.train)

    @property
    def batch_size(self) -> int:
        """Images per step: as many as the experiment says, or all of them if there are fewer."""
        asked = self.experiment.training.batch_size
        return asked if self.largest_batch is None else min(asked, self.largest_batch)

    def in_batches_of(self, size: int) -> "Parts":
        """Return the same parts with another batch size."""
        if size == self.batch_size:
            return self
        if self.largest_batch is not None and size > self.largest_batch:
            raise InputError(
                f"There are only {self.largest_batch:,} images, too few for a batch of {size:,}. Leave out this arm "
                f"(batch:{self.largest_batch} is the largest), or train on more images."
            )
        training = msgspec.structs.replace(self.experiment.training, batch_size=size)
        images_at_once(size, training.accumulate)  # raises an error if they do not fit
        return replace(self, experiment=msgspec.structs.replace(self.experiment, training=training))

    def new_optimizer(self, model: nn.Module, rate: float) -> SGD:
        training = self.experiment.training
        options: dict[str, Any] = {"weight_decay": training.weight_decay, "nesterov": training.nesterov}
        return SGD(model.parameters(), lr=rate, momentum=training.momentum, **options)

    @property
    def steps_per_epoch(self) -> int:
        training, data = self.experiment.training, self.experiment.data
        images = data.epoch_samples if self.experiment.mixes else len(self.train)
        return steps_per_epoch(images, training.batch_size, training.steps)

    @property
    def whole_training(self) -> int:
        """Steps of one full training."""
        return self.experiment.training.epochs * self.steps_per_epoch

    def new_recorder(self, model: nn.Module, optimizer: SGD, folder: Path) -> Recorder:
        record, batch_size = self.experiment.record, self.batch_size
        return Recorder(
            model,
            optimizer,
            probe=self.training_set.probe(record.probe_examples, batch_size),
            objective=self.objective,
            gradient=record.gradient,
            input_gradients=record.input_gradients,
            slopes_per_epoch=record.slopes_per_epoch,
            steps_per_epoch=self.steps_per_epoch,
            curvature_every=record.curvature_every,
            draw=self.drawn_anew if record.noise_examples else None,
            batch_size=batch_size,
            seed=self.experiment.seed,
            folder=folder,
        )

    def drawn_anew(self, moment: int) -> tuple[Tensor, Tensor]:
        """Draw augmented images with labels for at least two batches, independently of the order of training."""
        examples = min(self.experiment.record.noise_examples, len(self.training_set))
        size = min(self.batch_size, examples // 2)
        seed = derive_seed(self.experiment.seed, NOISE)
        batches = epoch_batches(self.training_set, batch_size=size, seed=seed, epoch=moment, augment=self.augment)
        images, labels = zip(*islice(batches, examples // size), strict=True)
        return torch.cat(images), torch.cat(labels)

    def new_average(self, model: nn.Module) -> AveragedModel | None:
        """An exponential moving average of weights and batch-norm statistics, if the experiment records one."""
        steps = self.experiment.record.average * self.whole_training
        if not steps:
            return None
        decay = max(1 - 1 / steps, 0.0)
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        return AveragedModel(model, multi_avg_fn=average, use_buffers=True)

    def losses_at(self, rate: float, draw: int = 0, steps: int | None = None) -> Iterator[float]:
        """Train from the first rate `rate` and yield the loss of each step, without end.

        The same `draw` means the same initial weights, data order and noise. The rate is constant, or follows the whole
        schedule within `steps` steps.
        """
        keep_freed_memory()
        training, seed = self.experiment.training, seed_of(self.experiment, draw)
        model = self.new_model(draw=draw).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        optimizer, generators = self.new_optimizer(model, rate), step_generators(seed, 0)
        images = resident(self.training_set, device_of(model))
        epochs = (
            epoch_batches(
                images,
                batch_size=training.batch_size,
                seed=seed,
                epoch=epoch,
                augment=self.augment,
                device=device_of(model),
                memory_format=torch.channels_last,
            )
            for epoch in count()
        )

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for step, batch in enumerate(chain.from_iterable(epochs)):
                if steps:
                    epoch = min(step * training.epochs // steps, training.epochs - 1)
                    optimizer.param_groups[0]["lr"] = rate * self.schedule(epoch) / self.schedule(0)
                yield batch

        losses = descend(
            model,
            batches(),
            self.objective,
            optimizer,
            generators=generators,
            precision=training.precision,
            at_once=images_at_once(training.batch_size, training.accumulate),
        )
        for loss in drawn_from(derive_seed(seed), device_of(model), losses):
            yield loss.item()


def assemble(experiment: Experiment, *, device: str | None = None) -> Parts:
    """Build everything that `experiment` names, on `device` or by default on an accelerator if there is one."""
    named = look_up(experiment)
    dataset, fingerprint = load_once(experiment.data.name), experiment.data.fingerprint
    if fingerprint and dataset.fingerprint() != fingerprint:
        raise InputError(
            f"The images of {experiment.data.name} are not those that the run began with (data.fingerprint). Restore "
            "them, or start a new run in another folder."
        )
    train, held_out = _training_images(experiment, dataset.train)
    n_test = experiment.data.test_examples
    test = dataset.test if n_test is None else dataset.test.subset(n_test, experiment.seed)
    place = usable_device(device)
    if experiment.training.threads is not None:
        torch.set_num_threads(experiment.training.threads)
    choose_kernels(experiment.training.kernels)
    for precision in (experiment.training.precision, experiment.attack_precision):
        check_precision(precision, place)

    def new_model(draw: int = 0) -> nn.Module:
        with drawing_from(derive_seed(seed_of(experiment, draw)), place):
            model = models.create(
                experiment.model.name,
                num_classes=dataset.num_classes,
                input_shape=dataset.input_shape,
                normalize=train.channel_mean_std() if experiment.model.normalize else None,
                **experiment.model.options,
            )
        return model.to(place)

    new_model()  # a model that cannot be built fails here
    return Parts(
        **vars(named),
        experiment=experiment,
        train=train,
        test=test,
        new_model=new_model,
        held_out=held_out,
    )


def with_fingerprint(experiment: Experiment) -> Experiment:
    """Return the experiment with the hash of its images if they are a user's own: other images make another run."""
    given = experiment.data
    if given.fingerprint or not is_own(given.name):
        return experiment
    fingerprint = load_once(given.name).fingerprint()
    return msgspec.structs.replace(experiment, data=msgspec.structs.replace(given, fingerprint=fingerprint))


def check_settings(experiment: Experiment) -> None:
    """Refuse settings that contradict each other, before anything runs."""
    record, training = experiment.record, experiment.training
    images_at_once(training.batch_size, training.accumulate)
    if training.accumulate > 1 and experiment.mixes:
        raise InputError("training.accumulate cannot divide batches with pseudo-labelled images. Leave it out.")
    if 0 < record.noise_examples < 4:  # two batches of a labelled and a pseudo-labelled image
        raise InputError(
            f"record.noise_examples = {record.noise_examples} is too few for two batches. Set it to 512, or to 0."
        )
    for name in ("attacked_examples", "best_every"):
        if getattr(record, name) and not experiment.attacks:
            raise InputError(f"record.{name} needs an attack. Add one under [attacks], or set record.{name} to 0.")


def epoch_images(experiment: Experiment) -> int:
    """Return the number of images in an epoch; no data are read."""
    data = experiment.data
    return data.epoch_samples if experiment.mixes else data.train_examples or find(data.name).train_images


def seed_of(experiment: Experiment, draw: int) -> int:
    """Return the seed of a short training: the experiment's seed for draw 0, unrelated seeds for other draws."""
    return derive_seed(experiment.seed, draw) if draw else experiment.seed


def _training_images(experiment: Experiment, everything: Split) -> tuple[Split, Split | None]:
    """Return the images to train on and, if the best weights are kept, held-out images: unused ones if possible."""
    asked, n_held_out = experiment.data.train_examples, experiment.record.held_out_examples
    train = everything if asked is None else everything.subset(asked, experiment.seed)
    if not experiment.record.best_every:
        return train, None
    drawn = everything.subset(min(len(everything), len(train) + n_held_out), experiment.seed)  # `train` comes first
    n_train = len(drawn) - n_held_out
    if n_train < 1:
        raise InputError(
            f"record.held_out_examples = {n_held_out} leaves none of the {len(everything)} images for training. "
            "Set a smaller number."
        )
    return drawn.part(0, n_train), drawn.part(n_train, len(drawn))
