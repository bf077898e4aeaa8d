"""A study of three seeds whose every figure is known."""

from collections.abc import Callable

import pytest

from excite.evaluation import Evaluation
from excite.lipschitz.protocol import LipschitzEstimate
from excite.runs.folder import RunFolder

ROBUST = {"baseline": (30, 32, 37), "poe": (45, 40, 44), "largest": (41, 42, 43)}  # of 100 images, per seed
EDGE = LipschitzEstimate(4.0, (3.5, 4.0), "edge", True, "6 runs")
Write = Callable[..., RunFolder]
Evaluated = Callable[..., Evaluation]


@pytest.fixture
def three_seeds(write_run: Write, evaluated: Evaluated) -> list[RunFolder]:
    return [
        write_run(
            {
                arm: {"rate": rate, "evaluation": evaluated(90 + seed, ROBUST[arm][seed])}
                for arm, rate in (("baseline", 0.1), ("poe", 0.25), ("largest", 0.5))
            },
            changes=[f"seed={seed}", "name=table-1-cifar10-resnet20-small", "data.name=cifar10", "model.name=resnet8"],
            estimate=EDGE,
        )
        for seed in range(3)
    ]
