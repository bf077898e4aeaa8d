"""The best of a grid of rates, found with as many steps as finding 1/L may take: the comparison the paper makes."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from excite.console import Speaker
from excite.data import Split
from excite.data.batches import TrainingData, steps_per_epoch
from excite.errors import DivergedError, InputError
from excite.evaluation import Evaluation, evaluate
from excite.files import write_json
from excite.quantities import OnProgress
from excite.runs.assemble import Parts
from excite.runs.experiment import estimator_of
from excite.runs.folder import ArmFolder
from excite.schedules import Schedule, rescale

SPAN = 8.0  # the grid reaches from the baseline's rate / SPAN to its rate · SPAN
HELD_OUT = 0.1  # of the training images judge the rates, but not more than
MOST_HELD_OUT = 1000
CLEAN_LOSS = 0.02  # of clean accuracy that the winner may lose to the best trial


@dataclass(frozen=True)
class Trial:
    """A short training at one rate: its accuracies on the held-out images, or why it has none."""

    rate: float
    clean_accuracy: float | None
    robust_accuracy: float | None
    problem: str | None

    @property
    def accuracies(self) -> str:
        if self.robust_accuracy is None or self.clean_accuracy is None:
            return "diverged"
        return f"{self.robust_accuracy:.1%} and {self.clean_accuracy:.1%}"


@dataclass(frozen=True)
class GridSearch:
    """Several rates tried with equal shares of one budget, and the winner among them, see `winner_of`."""

    trials: tuple[Trial, ...]
    winner: float
    steps: int  # of each trial, in epochs of equal length
    budget: int  # steps: a baseline training, and what estimating L may take
    held_out: int  # images
    attack: str

    def __str__(self) -> str:
        tried = ", ".join(f"{trial.rate:.3g}: {trial.accuracies}" for trial in self.trials)
        return (
            f"Grid search: {self.winner:.3g} is the most robust rate under {self.attack} whose clean accuracy is "
            f"within {100 * CLEAN_LOSS:g} points of the best, on {self.held_out} held-out images after {self.steps} "
            f"steps each (robust and clean accuracy by rate: {tried})."
        )


def search(parts: Parts, arm: ArmFolder, rates: int, console: Speaker) -> None:
    """Leave what a grid search found in the arm's folder."""
    with console.task(f"{arm.name}: trying {rates} rates") as progress:
        found = grid_search(parts, rates, folder=arm.trials, on_progress=progress)
    write_json(arm.search_file, asdict(found))
    shutil.rmtree(arm.trials)
    console.say(str(found))


def check_search(parts: Parts, rates: int) -> None:
    """Refuse a grid that cannot be searched: each rate takes a step at least, and some images judge."""
    if (budget := _budget(parts)) < rates:
        shared, fewer = (f"{budget} steps", f"try grid:{budget} or fewer, or ") if budget > 1 else ("One step", "")
        raise InputError(f"{shared} cannot be shared among {rates} rates; {fewer}train longer.")
    _images_held_out(len(parts.train))


def _budget(parts: Parts) -> int:
    """Steps: a baseline training to start from, and what the estimate of L may take."""
    return parts.whole_training + estimator_of(parts.experiment).most_steps(parts.whole_training)


def grid_search(parts: Parts, rates: int, *, folder: Path, on_progress: OnProgress = lambda *_: None) -> GridSearch:
    """Try `rates` rates, evenly spaced in their logarithm, from 1/8 of the baseline's rate to 8 times it.

    1/L costs a baseline training to start from, and the estimate of L. As many steps are divided evenly among the
    rates. Each trial starts from the weights that every arm starts from, trains on the training images without the
    held-out ones, and goes through the whole schedule in the steps it has. The held-out images decide, see `winner_of`.
    `folder` keeps what the trials have reached.
    """
    check_search(parts, rates)
    budget = _budget(parts)
    labelled, held_out = hold_out(parts.train, parts.experiment.seed)
    rest = parts.mixed(labelled)
    epochs = -(-(budget // rates) // steps_per_epoch(rest.epoch_images, parts.experiment.training.batch_size))
    trainer = _Trainer(parts, rest, held_out, epochs, budget // rates // epochs)
    taken = count(1)
    trials = tuple(
        trainer.trial(rate, folder / str(number), lambda *_: on_progress(next(taken), budget))
        for number, rate in enumerate(grid(parts.schedule(0), rates))
    )
    if all(trial.problem for trial in trials):
        raise DivergedError(
            f"Training diverged at every rate from {trials[0].rate:.3g} to {trials[-1].rate:.3g}. "
            "Give the baseline a lower rate; the grid lies around it."
        )
    return GridSearch(
        trials=trials,
        winner=winner_of(trials).rate,
        steps=epochs * trainer.steps,
        budget=budget,
        held_out=len(held_out),
        attack=next(iter(parts.attacks), "no attack"),
    )


def winner_of(trials: Sequence[Trial]) -> Trial:
    """Return the most robust of the trials whose clean accuracy is within two points of the best.

    Robust accuracy alone would prefer a network that gives every image the same class, and is therefore right about
    10% of them under any attack, to one that has learned but withstands the attack on fewer images.

    >>> constant, trained = Trial(1.0, 0.10, 0.10, None), Trial(0.1, 0.95, 0.08, None)
    >>> winner_of([constant, trained]).rate
    0.1
    """
    finished = [trial for trial in trials if trial.problem is None]
    least = max(trial.clean_accuracy or 0 for trial in finished) - CLEAN_LOSS - 1e-9  # rounding
    accurate = [trial for trial in finished if (trial.clean_accuracy or 0) >= least]
    return max(accurate, key=lambda trial: (trial.robust_accuracy or 0, trial.clean_accuracy or 0))


def grid(centre: float, rates: int) -> list[float]:
    """Rates evenly spaced in their logarithm, from centre / 8 to centre · 8.

    >>> grid(0.5, 3)
    [0.0625, 0.5, 4.0]
    """
    return [centre * SPAN ** (2 * number / (rates - 1) - 1) for number in range(rates)]


def hold_out(split: Split, seed: int) -> tuple[Split, Split]:
    """The training images in random order: those that stay, and those that judge."""
    held_out = _images_held_out(len(split))
    shuffled = split.subset(len(split), seed)
    return (
        Split(shuffled.images[held_out:], shuffled.labels[held_out:]),
        Split(shuffled.images[:held_out], shuffled.labels[:held_out]),
    )


def _images_held_out(images: int) -> int:
    held_out = min(int(HELD_OUT * images), MOST_HELD_OUT)
    if held_out < 1:
        raise InputError(f"{images} training images are too few to hold some out; a grid search needs 10 or more.")
    return held_out


@dataclass(frozen=True)
class _Trainer:
    parts: Parts
    rest: TrainingData
    held_out: Split
    epochs: int
    steps: int  # per epoch

    def trial(self, rate: float, folder: Path, on_progress: OnProgress) -> Trial:
        done = ArmFolder(folder).evaluation_file
        try:
            evaluation = Evaluation.load(done) if done.exists() else self._evaluation(rate, folder, on_progress)
        except DivergedError as error:
            return Trial(rate, None, None, str(error).partition(". ")[0])  # its checkpoint does not stay
        evaluation.save(done)
        return Trial(rate, evaluation.clean.value, evaluation.worst.value, None)

    def _evaluation(self, rate: float, folder: Path, on_progress: OnProgress) -> Evaluation:
        parts, model = self.parts, self.parts.new_model()
        schedule = shrunk(parts.schedule, parts.experiment.training.epochs, self.epochs)
        parts.fit(
            model,
            self.rest,
            parts.new_optimizer(model, rate),
            rescale(schedule, rate, horizon=self.epochs),
            folder=folder,
            epochs=self.epochs,
            steps=self.steps,
            on_progress=on_progress,
        )
        images, labels = self.held_out.floats(), self.held_out.labels
        device = next(model.parameters()).device
        first = dict(list(parts.attacks.items())[:1])
        return evaluate(model, images.to(device), labels.to(device), first, seed=parts.experiment.seed, checks=False)


def shrunk(schedule: Schedule, epochs: int, shorter: int) -> Schedule:
    """The whole course of `schedule` over `epochs`, gone through in `shorter` epochs (or longer ones)."""
    return lambda epoch: schedule(epoch * epochs // shorter)
