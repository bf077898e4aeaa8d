"""How much work an experiment is, in forward passes of one image; a backward pass counts as many as it takes FLOPs.

Nothing runs and no complete data set is read for it. The count is an upper bound but for one guess: how many images
withstand an attack to its end, since those that fall leave it.
"""

from dataclasses import dataclass

from excite import data
from excite.data.batches import steps_per_epoch
from excite.objectives.protocol import TRAINING_PASSES
from excite.runs.arms import arm_named
from excite.runs.assemble import look_up
from excite.runs.experiment import Experiment, estimator_of, is_wanted
from excite.runs.stages.grid_search import HELD_OUT, MOST_HELD_OUT

WITHSTAND = 0.5  # the guess
CURVATURE_STEPS = 12 * 2  # Lanczos takes a gradient of a gradient twelve times; each is two training steps


@dataclass(frozen=True)
class Work:
    """By what it is for. `teaching` is in passes of the teacher's network."""

    training: float
    estimating: float = 0.0
    attacking: float = 0.0
    teaching: float = 0.0

    @property
    def passes(self) -> float:
        """Through the experiment's own network."""
        return self.training + self.estimating + self.attacking


def count_work(experiment: Experiment) -> Work:
    """Of one run with all its arms."""
    training, record, sizes = experiment.training, experiment.record, Sizes.of(experiment)
    arms, named = [arm_named(arm) for arm in experiment.arms], look_up(experiment)
    per_image = named.objective.passes
    classes = data.find(experiment.data.name).num_classes
    attacks = [WITHSTAND * attack.passes(classes) for attack in named.attacks.values()]
    first_attack = sum(attacks[:1])

    slopes = min(record.slopes_per_epoch, sizes.steps) * training.batch_size
    measured = min(record.test_examples, sizes.test) + min(record.attacked_examples, sizes.test) * first_attack
    curvatures = training.epochs // record.curvature_every if record.curvature_every else 0
    one_training = training.epochs * ((sizes.epoch + slopes) * per_image + measured)
    one_training += curvatures * CURVATURE_STEPS * min(record.probe_examples, sizes.train) * per_image

    whole = training.epochs * sizes.steps
    edge = estimator_of(experiment).most_steps(whole) * training.batch_size * per_image
    held_out = min(HELD_OUT * sizes.train, MOST_HELD_OUT)
    one_search = training.epochs * sizes.epoch * per_image + edge
    searches = [one_search + arm.rates * held_out * (1 + first_attack) for arm in arms if arm.rates]
    return Work(
        training=len(arms) * one_training,
        estimating=sum(searches) + edge * (is_wanted(experiment) or any(arm.estimator is not None for arm in arms)),
        attacking=len(arms) * sizes.test * (1 + sum(attacks)),
        teaching=_teaching(experiment, sizes),
    )


@dataclass(frozen=True)
class Sizes:
    """Images to train on and to test on; images and steps of an epoch."""

    train: int
    test: int
    epoch: int
    steps: int

    @classmethod
    def of(cls, experiment: Experiment) -> "Sizes":
        known, batch = data.find(experiment.data.name), experiment.training.batch_size
        train = experiment.data.train_examples or known.train_images
        if experiment.data.unlabelled is not None or experiment.teacher is not None:
            epoch = batch * steps_per_epoch(experiment.data.epoch_samples, batch)
        else:
            epoch = train
        steps = steps_per_epoch(epoch, batch, experiment.training.steps)
        return cls(train, experiment.data.test_examples or known.test_images, min(epoch, steps * batch), steps)


def _teaching(experiment: Experiment, sizes: Sizes) -> float:
    if experiment.teacher is None:
        return 0.0
    training = experiment.teacher.training or experiment.training
    return training.epochs * TRAINING_PASSES * min(sizes.train, (training.steps or sizes.train) * training.batch_size)
