"""L by edge for an experiment: short trainings at several rates, and what they may cost."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from excite.lipschitz import LipschitzEstimate, find_edge
from excite.runs.assemble import Parts
from excite.runs.experiment import Lipschitz

FEWEST_STEPS = 40  # a shorter run tells nothing


def brief_steps(settings: Lipschitz, whole: int) -> int:
    """The length of one short training, where a full one takes `whole` steps."""
    return settings.steps or max(math.ceil(settings.budget * whole / settings.runs), FEWEST_STEPS)


def most_steps(settings: Lipschitz, whole: int) -> int:
    """What all short trainings together take at most."""
    return settings.seeds * settings.runs * brief_steps(settings, whole)


def search_edge(parts: Parts, on_step: Callable[[int, int], None]) -> LipschitzEstimate:
    """The largest L over the experiment's seeds for this; `on_step` is told (done, at most)."""
    settings = parts.experiment.lipschitz
    whole = parts.whole_training
    steps, budget, taken = brief_steps(settings, whole), most_steps(settings, whole), count(1)

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
