"""Which estimators of L an experiment asks for: its own under [lipschitz], others by name under [estimators].

`method` is a name in `lipschitz.ESTIMATORS`, `shared` means one L for all seeds of a study, `wanted` an L that is
estimated though no arm trains at it, all else are the estimator's own options.
"""

from collections.abc import Mapping
from typing import Any

from excite.errors import InputError, unknown
from excite.lipschitz import ESTIMATORS, Estimator, Recording, estimator
from excite.runs.arms import OWN, arm_named
from excite.runs.experiment import Experiment

HOUSE = ("method", "shared", "wanted")  # keys that are not the estimator's


def options_of(experiment: Experiment, name: str = OWN) -> Mapping[str, Any]:
    """What the experiment says of one: its own, a preset, or an estimator of this name with nothing set."""
    if name == OWN:
        return experiment.lipschitz
    if name in experiment.estimators:
        return experiment.estimators[name]
    if name in ESTIMATORS:
        return {"method": name}
    raise unknown("estimator", name, [*experiment.estimators, *ESTIMATORS])


def own_name(experiment: Experiment) -> str:
    """What the experiment's own way is called: a preset's name if it is one, else its method's."""
    presets = (name for name, options in experiment.estimators.items() if options == experiment.lipschitz)
    return next(presets, str(experiment.lipschitz["method"]))


def every_name(experiment: Experiment) -> list[str]:
    """Of each way to know L: the experiment's own, its presets, and the estimators that measure something."""
    measuring = (name for name, kind in ESTIMATORS.items() if kind.needs != "nothing")
    return list(dict.fromkeys([own_name(experiment), *experiment.estimators, *measuring]))


def estimator_of(experiment: Experiment, name: str = OWN) -> Estimator[Any]:
    options = options_of(experiment, name)
    if not isinstance(options.get("method"), str):
        raise InputError(f'The preset "{name}" needs a method: one of {", ".join(ESTIMATORS)}.')
    own = {key: value for key, value in options.items() if key not in HOUSE and value is not None}
    return estimator(options["method"], **own)


def is_shared(experiment: Experiment, name: str = OWN) -> bool:
    """Whether all seeds of a study use one L."""
    return bool(options_of(experiment, name).get("shared", False))


def is_wanted(experiment: Experiment) -> bool:
    """Whether L is a result by itself: Figure 2 marks it beside trainings at rates that are not 1/L."""
    return bool(experiment.lipschitz.get("wanted", False))


def check(experiment: Experiment, arms: tuple[str, ...]) -> None:
    """Refuse what no baseline of this experiment could be estimated from, before anything trains."""
    record, epochs = experiment.record, experiment.training.epochs
    recording = Recording(
        moments=epochs,
        input_gradients=record.input_gradients,
        slopes=epochs * record.slopes_per_epoch,
        curvatures=epochs // record.curvature_every if record.curvature_every else 0,
    )
    needed = {arm_named(arm).estimator for arm in arms} - {None} | ({OWN} if is_wanted(experiment) else set())
    for name in {OWN, *needed}:
        chosen = estimator_of(experiment, name or OWN)
        if name in needed:
            chosen.check(recording)
