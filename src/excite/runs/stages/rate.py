"""Find an arm's rate: estimate L, or search a grid of rates with as many steps as 1/L may cost.

L comes from what its estimator needs: the baseline's trace, short trainings, nothing, or another seed's L.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from excite.data import Split
from excite.data.batches import steps_per_epoch
from excite.errors import DivergedError, InputError
from excite.evaluation import Evaluation
from excite.lipschitz import LipschitzEstimate, ShortTrainings
from excite.lipschitz.edge import described
from excite.quantities import OnProgress
from excite.runs.arms import OWN
from excite.runs.assemble import Parts
from excite.runs.experiment import STUDY_MAY_VARY, Experiment
from excite.runs.folder import ArmFolder, RunFolder, study_in
from excite.runs.records import CLEAN_LOSS, GridSearch, StoredEstimate, Trial
from excite.runs.stages.train import fit, measure
from excite.schedules import Schedule, rescale

if TYPE_CHECKING:
    from excite.runs.procedure import Run

SPAN = 8.0  # the grid reaches from the baseline's rate / SPAN to its rate · SPAN
HELD_OUT = 0.1  # share of the training images that evaluate the rates, but not more than
MOST_HELD_OUT = 1000


def estimate(run: "Run", name: str = OWN) -> None:
    """Write L by the estimator `name` into the folder; if an estimator other than the run's own fails, write why."""
    started = time.perf_counter()
    result, problem = None, ""
    try:
        result = _estimate(run, name)
    except InputError as error:
        if name == OWN:
            raise
        problem = str(error)
    seconds, options = time.perf_counter() - started, dict(run.experiment.options_of(name))
    StoredEstimate(result, seconds, problem, options).save(run.files.estimate_file(name))
    if name == OWN:
        run.console.say(str(result))


def _estimate(run: "Run", name: str) -> LipschitzEstimate:
    estimator = run.experiment.estimator_of(name)
    if estimator.needs == "trace":
        return estimator(run.files.needed_trace("baseline"))
    if estimator.needs == "nothing":
        return estimator(None)
    parts, console = run.parts, run.console
    whole = parts.whole_training
    usual, most = estimator.usual_steps(whole), estimator.most_steps(whole)
    method = run.experiment.options_of(name)["method"]
    title = f"L by {method}: short runs of {usual:,} to {most:,} steps in all (one training: {whole:,})"
    steps_taken, first_rate = count(1), parts.schedule(0)
    optimizer = described(parts.new_optimizer(parts.new_model(), first_rate))
    with console.task(title) as progress:

        def losses_at(rate: float, draw: int, steps: int) -> Iterator[float]:
            for loss in parts.losses_at(rate, draw, steps):
                progress(next(steps_taken), most)
                yield loss

        return estimator(ShortTrainings(losses_at, whole, first_rate, optimizer, say=console.say))


def leader_of(run: RunFolder, experiment: Experiment, estimator: str) -> RunFolder | None:
    """Return the run that estimates L for this one, if the study shares L: the first with the same experiment.

    None if that is this run, or if it was not begun as a part of a study.
    """
    path = run.path.absolute()
    study = study_in(path.parent)
    if not experiment.options_of(estimator).get("shared") or path.name not in (member.path.name for member in study):
        return None
    same = run.experiment.settings(without=STUDY_MAY_VARY)
    begun = (member for member in study if member.exists)
    leader = next((member for member in begun if member.experiment.settings(without=STUDY_MAY_VARY) == same), run)
    return None if leader.path.name == path.name else leader


def share(leader: RunFolder, run: RunFolder, name: str) -> None:
    """Copy the leader's L into the run's folder, with a note where it was estimated."""
    stored = StoredEstimate.load(leader.estimate_file(name))
    shared = stored.estimate and replace(
        stored.estimate, basis=f"shared by the study, estimated in {leader.path.name}: {stored.estimate.basis}"
    )
    msgspec.structs.replace(stored, estimate=shared, seconds=0.0).save(run.estimate_file(name))


def search(run: "Run", arm: ArmFolder, n_rates: int) -> None:
    """Write the result of a grid search into the arm's folder."""
    with run.console.task(f"{arm.name}: trying {n_rates} rates") as progress:
        result = grid_search(run.parts, n_rates, folder=arm.trials, on_progress=progress)
    result.save(arm.search_file)
    run.console.say(str(result))


def check_search(parts: Parts, n_rates: int) -> None:
    """Refuse a grid search without a step for every rate."""
    if (budget := _budget(parts)) < n_rates:
        raise InputError(
            f"{budget} steps are too few for {n_rates} rates. Train longer, or try grid:{max(budget, 2)} or fewer."
        )


def _budget(parts: Parts) -> int:
    """Steps that 1/L usually costs: a baseline training, and the estimate of L."""
    return parts.whole_training + parts.experiment.estimator_of().usual_steps(parts.whole_training)


def grid_search(parts: Parts, n_rates: int, *, folder: Path, on_progress: OnProgress = lambda *_: None) -> GridSearch:
    """Try `n_rates` rates, evenly spaced on a logarithmic scale from 1/8 of the baseline's rate to 8 times it.

    The rates share the number of steps that 1/L costs: a baseline training and the estimate of L. Each trial starts
    from the initial weights of the arms and follows the whole schedule. Held-out images decide, see `winner_of`.
    Finished trials are kept in `folder` until the search is over.
    """
    check_search(parts, n_rates)
    budget = _budget(parts)
    labelled, held_out = hold_out(parts.train, parts.experiment.seed)
    images = parts.mixed(labelled)
    epochs = -(-(budget // n_rates) // steps_per_epoch(len(images), parts.experiment.training.batch_size))
    steps = budget // n_rates // epochs  # per epoch
    shorter = shrunk(parts.schedule, parts.experiment.training.epochs, epochs)
    steps_taken = count(1)

    def progress(*_: int) -> None:
        on_progress(next(steps_taken), budget)

    trials = []
    for number, rate in enumerate(grid(parts.schedule(0), n_rates)):
        trial_folder = ArmFolder(folder / str(number))
        try:
            if not trial_folder.evaluation_file.exists():
                model = parts.new_model()
                schedule = rescale(shorter, rate, horizon=epochs)
                options = {"data": images, "epochs": epochs, "steps": steps, "folder": trial_folder.path}
                fit(parts, model, parts.new_optimizer(model, rate), schedule, on_progress=progress, **options)
                measure(parts, model, held_out, attacked=True).save(trial_folder.evaluation_file)
            evaluation = Evaluation.load(trial_folder.evaluation_file)
            trials.append(Trial(rate, evaluation.clean.value, evaluation.worst.value, None))
        except DivergedError as error:
            trials.append(Trial(rate, None, None, str(error).partition(". ")[0]))
    if all(trial.problem for trial in trials):
        raise DivergedError(
            f"Training diverged at every rate from {trials[0].rate:.3g} to {trials[-1].rate:.3g}. "
            "Give the baseline, which is at the center of the grid, a lower rate."
        )
    return GridSearch(
        trials=tuple(trials),
        winner=winner_of(trials).rate,
        steps=epochs * steps,
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


def grid(center: float, n_rates: int) -> list[float]:
    """Return rates evenly spaced on a logarithmic scale, from center / 8 to center · 8.

    >>> grid(0.5, 3)
    [0.0625, 0.5, 4.0]
    """
    return [center * SPAN ** (2 * number / (n_rates - 1) - 1) for number in range(n_rates)]


def hold_out(split: Split, seed: int) -> tuple[Split, Split]:
    """Shuffle the images and split them into those to train on and those to evaluate on."""
    n_held_out = max(1, min(int(HELD_OUT * len(split)), MOST_HELD_OUT))
    shuffled = split.subset(len(split), seed)
    return shuffled.part(n_held_out, len(split)), shuffled.part(0, n_held_out)


def shrunk(schedule: Schedule, epochs: int, shorter: int) -> Schedule:
    """Compress `schedule` from `epochs` epochs to `shorter` epochs."""
    return lambda epoch: schedule(epoch * epochs // shorter)
