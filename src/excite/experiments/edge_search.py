"""L by edge for an experiment: short trainings at several rates, and what they may cost."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from excite.experiments.parts import Parts
from excite.lipschitz import LipschitzEstimate, find_edge

FEWEST_STEPS = 40  # a shorter run tells nothing


def brief_steps(parts: Parts) -> int:
    """The length of one short training."""
    settings = parts.experiment.lipschitz
    return settings.steps or max(math.ceil(settings.budget * whole_training(parts) / settings.runs), FEWEST_STEPS)


def most_steps(parts: Parts) -> int:
    """What all short trainings together take at most."""
    settings = parts.experiment.lipschitz
    return settings.seeds * settings.runs * brief_steps(parts)


def whole_training(parts: Parts) -> int:
    """The steps of one full training."""
    return parts.experiment.training.epochs * parts.steps_per_epoch


def search_edge(parts: Parts, on_step: Callable[[int, int], None]) -> LipschitzEstimate:
    """The largest L over the experiment's seeds for this; `on_step` is told (done, at most)."""
    settings = parts.experiment.lipschitz
    steps, budget, taken = brief_steps(parts), most_steps(parts), count(1)

    def losses_at(rate: float, draw: int) -> Iterator[float]:
        for loss in parts.losses_at(rate, steps, draw):
            on_step(next(taken), budget)
            yield loss

    return LipschitzEstimate.most_careful(
        [
            find_edge(
                partial(losses_at, draw=draw),
                steps=steps,
                start=parts.schedule(0),
                ratio=settings.ratio,
                max_runs=settings.runs,
            )
            for draw in range(settings.seeds)
        ]
    )
