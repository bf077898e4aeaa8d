"""An experiment's names turned into the things themselves, all of them checked before anything runs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import SGD

from excite import data, models
from excite.attacks import Attack
from excite.attacks.given import as_attacks
from excite.data import Split
from excite.data.augment import AUGMENTATIONS, Augmentation
from excite.data.batches import Mixture, TrainingData, epoch_batches, steps_per_epoch
from excite.errors import InputError
from excite.lipschitz.online import OnlineRate
from excite.memory import keep_freed_memory
from excite.objectives import OBJECTIVES, NamedObjective
from excite.quantities import OnProgress
from excite.randomness import derive_seed, device_of, drawing_from, drawn_from, step_generators
from excite.registry import build, kind_and_options, lookup
from excite.runs.experiment import Experiment
from excite.runs.stored import fitting
from excite.schedules import SCHEDULES, Schedule
from excite.trace import Recorder
from excite.training import descend, train
from excite.training.distributed import ALONE, Ranks
from excite.training.history import EpochMetrics


@dataclass(frozen=True)
class Parts:
    experiment: Experiment
    train: Split
    test: Split
    new_model: Callable[..., nn.Module]  # the same initial weights every time, others for `draw=1`, `draw=2`, …
    objective: NamedObjective
    schedule: Schedule  # the baseline's γᵏ
    augment: Augmentation
    attacks: Mapping[str, Attack]
    class_names: tuple[str, ...]
    held_out: Split | None = None  # training images that no arm trains on, to choose its best weights by
    pseudo_labelled: Callable[[], Split] | None = None  # asked once, when training needs them: a teacher may be slow

    @cached_property
    def training_set(self) -> TrainingData:
        """What every arm trains on."""
        return self.mixed(self.train)

    def prepare(self) -> None:
        """Have all that training needs; a teacher's labels may have to be made first."""
        _ = self.training_set

    def mixed(self, labelled: Split) -> TrainingData:
        """`labelled` images, and the pseudo-labelled ones with them if the experiment has any."""
        return labelled if self._pseudo is None else Mixture(labelled, self._pseudo, self.experiment.data.epoch_samples)

    @cached_property
    def _pseudo(self) -> Split | None:
        return None if self.pseudo_labelled is None else self.pseudo_labelled()

    @property
    def largest_batch(self) -> int | None:
        """All images of an epoch; none where pseudo-labelled ones fill a batch of any size."""
        return None if self.experiment.mixes else len(self.train)

    @property
    def batch_size(self) -> int:
        """How many images a step takes, where the experiment may ask for more than there are."""
        return fitting(self.experiment.training.batch_size, self.largest_batch)

    def in_batches_of(self, size: int) -> "Parts":
        """The same, but for how many images a step takes."""
        if size == self.batch_size:
            return self
        if fitting(size, self.largest_batch) < size:
            raise InputError(
                f"A batch of {size:,} images cannot be had of {self.largest_batch:,}. Leave out the arm that wants it "
                f"(batch:{self.largest_batch} is the largest), or train on more images."
            )
        training = msgspec.structs.replace(self.experiment.training, batch_size=size)
        return replace(self, experiment=msgspec.structs.replace(self.experiment, training=training))

    def new_optimizer(self, model: nn.Module, rate: float) -> SGD:
        training = self.experiment.training
        return SGD(
            model.parameters(),
            lr=rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            nesterov=training.nesterov,
        )

    @property
    def steps_per_epoch(self) -> int:
        training = self.experiment.training
        return steps_per_epoch(self.experiment.epoch_images(len(self.train)), training.batch_size, training.steps)

    @property
    def whole_training(self) -> int:
        """The steps of one full training."""
        return self.experiment.training.epochs * self.steps_per_epoch

    def new_recorder(self, model: nn.Module, optimizer: SGD, folder: Path) -> Recorder:
        experiment, probe = self.experiment, self.experiment.record.probe_examples
        return Recorder(
            model,
            optimizer,
            probe=self.training_set.probe(probe, experiment.training.batch_size),
            objective=self.objective,
            gradient=experiment.record.gradient,
            input_gradients=experiment.record.input_gradients,
            slopes_per_epoch=experiment.record.slopes_per_epoch,
            steps_per_epoch=self.steps_per_epoch,
            curvature_every=experiment.record.curvature_every,
            batch_size=experiment.training.batch_size,
            seed=experiment.seed,
            folder=folder,
        )

    def fit(
        self,
        model: nn.Module,
        images: TrainingData,
        optimizer: SGD,
        schedule: Schedule,
        *,
        folder: Path,
        epochs: int | None = None,
        steps: int | None = None,
        recorder: Recorder | None = None,
        online: OnlineRate | None = None,
        after_epoch: Callable[[nn.Module], dict[str, float]] | None = None,
        on_epoch: Callable[[EpochMetrics], None] | None = None,
        on_progress: OnProgress | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Train `model` as the experiment says, for its `epochs` and `steps` unless others are given."""
        training, seed = self.experiment.training, self.experiment.seed
        with drawing_from(derive_seed(seed), device_of(model)):  # dropout does
            train(
                model,
                images,
                self.objective,
                optimizer,
                schedule,
                epochs=epochs or training.epochs,
                batch_size=training.batch_size,
                seed=seed,
                augment=self.augment,
                steps=steps or training.steps,
                folder=folder,
                recorder=recorder,
                online=online,
                after_epoch=after_epoch,
                on_epoch=on_epoch,
                on_progress=on_progress,
                ranks=ranks,
            )

    def losses_at(self, rate: float, draw: int = 0, steps: int | None = None) -> Iterator[float]:
        """Train from `rate` on, without end; the same `draw` means the same weights, data order and noise.

        The rate is constant, or goes through the whole schedule in `steps` steps.
        """
        keep_freed_memory()
        experiment, seed = self.experiment, seed_of(self.experiment, draw)
        model = self.new_model(draw=draw).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        optimizer, generators = self.new_optimizer(model, rate), step_generators(seed, 0)
        epochs = (
            epoch_batches(
                self.training_set,
                batch_size=experiment.training.batch_size,
                seed=seed,
                epoch=epoch,
                augment=self.augment,
                device=next(model.parameters()).device,
                memory_format=torch.channels_last,
            )
            for epoch in count()
        )

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for taken, batch in enumerate(chain.from_iterable(epochs)):
                if steps:
                    epoch = min(taken * experiment.training.epochs // steps, experiment.training.epochs - 1)
                    optimizer.param_groups[0]["lr"] = rate * self.schedule(epoch) / self.schedule(0)
                yield batch

        losses = descend(model, batches(), self.objective, optimizer, generators=generators)
        for loss in drawn_from(derive_seed(seed), device_of(model), losses):
            yield loss.item()


@dataclass(frozen=True)
class Named:
    """What an experiment names and what can be had without its data."""

    objective: NamedObjective
    schedule: Schedule
    augment: Augmentation
    attacks: Mapping[str, Attack]


def look_up(experiment: Experiment) -> Named:
    training = experiment.training
    schedule = build("schedule", SCHEDULES, *kind_and_options("training.schedule", training.schedule))
    asked = {"kind": training.objective} if isinstance(training.objective, str) else training.objective
    objective = build("objective", OBJECTIVES, *kind_and_options("training.objective", asked))
    augment = lookup("augmentation", AUGMENTATIONS, experiment.data.augment)
    return Named(objective, schedule, augment, as_attacks(experiment.attacks))


def assemble(experiment: Experiment, *, device: str | None = None) -> Parts:
    """Look up and build everything `experiment` names; on `device`, or where torch finds an accelerator."""
    named = look_up(experiment)
    dataset = data.load(experiment.data.name)
    train = _subset(dataset.train, experiment.data.train_examples, experiment.seed)
    train, held_out = _hold_out(experiment, dataset.train, train)
    test = _subset(dataset.test, experiment.data.test_examples, experiment.seed)
    place = usable_device(device)
    if experiment.training.threads is not None:
        torch.set_num_threads(experiment.training.threads)

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

    new_model()
    return Parts(
        experiment,
        train,
        test,
        new_model,
        named.objective,
        named.schedule,
        named.augment,
        named.attacks,
        dataset.class_names,
        held_out,
    )


def seed_of(experiment: Experiment, draw: int) -> int:
    """The arms' own seed for draw 0; the others share none with another seed's draws."""
    return derive_seed(experiment.seed, draw) if draw else experiment.seed


def usable_device(name: str | None) -> torch.device:
    if name is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f'The device "{name}" cannot be used here ({error}). Leave out --device, or pass cpu.'
        ) from error
    return torch.device(name)


def _subset(split: Split, examples: int | None, seed: int) -> Split:
    return split if examples is None else split.subset(examples, seed)


def _hold_out(experiment: Experiment, everything: Split, train: Split) -> tuple[Split, Split | None]:
    """What is trained on, and what is kept out of it: images that were not asked for, else some that were."""
    if not experiment.record.best_every:
        return train, None
    count, used = experiment.record.held_out_examples, len(train)
    drawn = everything.subset(min(len(everything), used + count), experiment.seed)  # begins with those trained on
    if len(drawn) - count < 1:
        raise InputError(
            f"record.held_out_examples = {count} leaves none of the {len(everything)} training images to train on."
        )
    return drawn.part(0, len(drawn) - count), drawn.part(len(drawn) - count, len(drawn))
