"""What an experiment costs on this machine: its work, at the passes per second that the machine is seen to make.

Work is counted in forward passes of one image; a backward pass counts as many as it takes FLOPs. Nothing runs and no
complete data set is read for it. The count is an upper bound but for one guess: how many images withstand an attack to
its end, since those that fall leave it.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from excite import data
from excite.data.batches import steps_per_epoch
from excite.objectives.protocol import TRAINING_PASSES
from excite.quantities import duration
from excite.runs.arms import OWN, arm_named
from excite.runs.assemble import look_up
from excite.runs.experiment import Experiment, Model, estimator_of, is_wanted, with_values
from excite.runs.stages.grid_search import HELD_OUT, MOST_HELD_OUT
from excite.sweeps.speed import Network, passes_per_second

WITHSTAND = 0.5  # the guess
CURVATURE_STEPS = 12 * 2  # Lanczos takes a gradient of a gradient twelve times; each is two training steps


@dataclass(frozen=True)
class Workload:
    """By what it is for. `teaching` is in passes of the teacher's network."""

    training: float
    estimating: float = 0.0
    attacking: float = 0.0
    teaching: float = 0.0

    @property
    def passes(self) -> float:
        """Through the experiment's own network."""
        return self.training + self.estimating + self.attacking


def count_work(experiment: Experiment) -> Workload:
    """Of one run with all its arms."""
    training, record, sizes = experiment.training, experiment.record, Sizes.of(experiment)
    arms, named = [arm_named(arm) for arm in experiment.arms], look_up(experiment)
    per_image = named.objective.passes
    classes = data.find(experiment.data.name).num_classes
    attacks = [WITHSTAND * attack.passes(classes) for attack in named.attacks.values()]
    first_attack = sum(attacks[:1])

    slopes = min(record.slopes_per_epoch, sizes.steps) * sizes.batch
    measured = min(record.test_examples, sizes.test) + min(record.attacked_examples, sizes.test) * first_attack
    curvatures = training.epochs // record.curvature_every if record.curvature_every else 0
    one_training = training.epochs * ((sizes.epoch + slopes) * per_image + measured)
    one_training += curvatures * CURVATURE_STEPS * min(record.probe_examples, sizes.train) * per_image
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
    tests = 2 if looks else 1  # of the last weights, and of the best
    return Workload(
        training=len(arms) * one_training,
        estimating=sum(searches) + estimates,
        attacking=len(arms) * tests * sizes.test * (1 + sum(attacks)),
        teaching=_teaching(experiment, sizes),
    )


@dataclass(frozen=True)
class Sizes:
    """Images to train on and to test on; images and steps of an epoch; images of a batch."""

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
    """Of one run, and of all runs of the experiment's sweep."""

    work: Workload
    seconds: float
    sweep_runs: int
    sweep_seconds: float

    def __str__(self) -> str:
        return f"≈ {duration(self.seconds)}"


def costs(experiments: Mapping[str, Experiment], device: torch.device) -> dict[str, Price]:
    """What each experiment would cost on `device`, whose speed is measured now."""
    runs = {name: [experiment, *sweep_runs(experiment)] for name, experiment in experiments.items()}
    speeds = passes_per_second(networks(itertools.chain.from_iterable(runs.values())), device)

    def seconds(run: Experiment, work: Workload) -> float:
        return work.passes / speeds[_network(run, run.model)] + work.teaching / speeds[_network(run, _teacher(run))]

    found = {}
    for name, (experiment, *swept) in runs.items():
        work = count_work(experiment)
        in_sweep = sum(seconds(run, count_work(run)) for run in swept)
        found[name] = Price(work, seconds(experiment, work), len(swept), in_sweep)
    return found


def networks(runs: Iterable[Experiment]) -> set[Network]:
    """What they and their teachers train."""
    return {_network(run, model) for run in runs for model in (run.model, _teacher(run))}


def _network(run: Experiment, model: Model) -> Network:
    return Network(model.name, data.find(run.data.name).input_shape, tuple(sorted(model.options.items())))


def _teacher(run: Experiment) -> Model:
    """The teacher's model; where there is none, the run's own."""
    return (run.teacher and run.teacher.model) or run.model


def sweep_runs(experiment: Experiment) -> Iterator[Experiment]:
    """Every combination of the sweep's values; none where there is no sweep."""
    if experiment.sweep:
        for values in itertools.product(*experiment.sweep.values()):
            yield with_values(experiment, dict(zip(experiment.sweep, values, strict=True)))
