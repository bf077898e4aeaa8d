"""What a command needs of a run folder, or an error that says which command makes it: nothing is trained unasked."""

from excite.errors import DivergedError, InputError
from excite.lipschitz import LipschitzEstimate
from excite.runs.arms import OWN, arm_named
from excite.runs.experiment import every_name, own_name
from excite.runs.folder import ArmFolder, RunFolder
from excite.trace import Trace


def needed_model(run: RunFolder, arm: str) -> ArmFolder:
    """An arm whose training came to a good end, with its weights."""
    files = _trained(run, arm)
    if not files.has_checkpoint:
        raise InputError(f"{files.path} was kept without its weights. {_elsewhere(run, arm)}")
    return files


def _elsewhere(run: RunFolder, arm: str) -> str:
    """How to have it again without losing what is there."""
    return f"`excite train {run.path} --arm {arm} --out …` trains it again, in a folder of its own."


def _trained(run: RunFolder, arm: str) -> ArmFolder:
    files, trained = run.arm(arm), [each.name for each in run.arms]
    if arm not in trained:
        raise InputError(
            f"{run.path} has no trained arm {arm} (trained: {', '.join(trained) or 'none'}). "
            f"`excite train {run.path} --arm {arm}` trains it."
        )
    if files.problem:
        raise DivergedError(files.problem)
    return files


def needed_trace(run: RunFolder, arm: str) -> Trace:
    """What was recorded of an arm's training."""
    if arm_named(arm).finds_its_rate:
        raise InputError(
            f"{arm} leaves no trace: steps that it rolls back have no place in one. Name another arm, such as poe."
        )
    files = _trained(run, arm)
    if (trace := files.trace()) is None:
        raise InputError(f"{files.path} was kept without its trace. {_elsewhere(run, arm)}")
    return trace


def needed_estimate(run: RunFolder, name: str = OWN) -> LipschitzEstimate:
    """L by the run's own method, or by another one that an arm was given."""
    stored = run.estimates.get(name)
    if stored is None or stored.estimate is None:
        method, flags = name or run.experiment.lipschitz["method"], "--compare --train" if name else "--train"
        raise InputError(
            f"{run.path} holds no estimate of L. `excite estimate {run.path} {flags}` makes one by {method}, "
            "with the trainings that this needs."
        )
    return stored.estimate


def stored_estimates(run: RunFolder) -> dict[str, LipschitzEstimate | str]:
    """L by the run's own way and by every other, as the run has it; where it has none, why, or how to make it."""
    own = own_name(run.experiment)
    stored = {name or own: answer.estimate or answer.problem for name, answer in run.estimates.items()}
    command = f"not estimated in this run; `excite estimate {run.path} --compare --train` does it"
    return {name: stored.get(name, command) for name in every_name(run.experiment)}
