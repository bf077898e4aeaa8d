"""Run folders with known contents, as the stages of a run leave them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excite.evaluation import Evaluation
from excite.files import write_json
from excite.lipschitz.protocol import LipschitzEstimate
from excite.runs import load
from excite.runs.arms import OWN
from excite.runs.folder import EVALUATION, EXPERIMENT, OUTCOME, RunFolder
from excite.trace import Trace
from excite.training import EpochMetrics, append_metrics

ATTACK = "PGD_20 ε=1/255"


@pytest.fixture(scope="session")
def descent() -> Callable[..., Trace]:
    """A function that makes the trace of a straight descent to a goal, shaken by `noise`."""

    def descend(moments: int, *, noise: float = 0.0, slopes: int = 40, seed: int = 0) -> Trace:
        rng = np.random.default_rng(seed)
        goal = np.linspace(1, 0, moments + 1)[:, None] * rng.normal(size=30)
        path = goal + noise * rng.normal(size=(moments + 1, 30))
        gradients = np.concatenate([np.zeros((1, 30)), 4 * path[1:] * rng.uniform(0.5, 1, size=(moments, 30))])
        return Trace(
            squared_gradient_distances=((gradients[:, None] - gradients[None]) ** 2).sum(axis=2),
            squared_parameter_distances=((path[:, None] - path[None]) ** 2).sum(axis=2),
            steps=np.arange(1, moments + 1),
            learning_rates=np.full(moments, 0.1),
            slopes=rng.uniform(2, 4, size=slopes),
            slope_steps=np.arange(slopes),
            slope_learning_rates=np.full(slopes, 0.1),
            facts={"gradient": "epoch_mean"},
        )

    return descend


RunWriter = Callable[..., RunFolder]


@pytest.fixture
def write_run(tmp_path: Path) -> RunWriter:
    """A function that writes a run folder: `arms` maps names to their rate, evaluation, problem, epochs …"""

    def write(
        arms: Mapping[str, Mapping[str, Any]],
        *,
        changes: Sequence[str] = (),
        estimate: LipschitzEstimate | None = None,
        estimates: Mapping[str, LipschitzEstimate] | None = None,
    ) -> RunFolder:
        folder = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        values = load("mnist-sample", overrides=changes).to_json()
        attacks = {ATTACK: {"kind": "pgd", "eps": "1/255", "step": "0.1/255"}}
        write_json(folder / EXPERIMENT, values | {"attacks": attacks})
        answers = ({OWN: estimate} if estimate else {}) | dict(estimates or {})
        for name, found in answers.items():
            write_json(RunFolder(folder).estimate_file(name), {"estimate": found.to_json(), "seconds": 1.0})
        for name, arm in arms.items():
            known = {key: arm[key] for key in ("batch_size", "steps", "train_accuracy") if key in arm}
            write_json(
                folder / name / OUTCOME,
                {"rate": arm.get("rate", 0.1), "seconds": 1.0, "problem": arm.get("problem"), **known},
            )
            if "best" in arm:
                arm["best"].save(folder / name / "best" / EVALUATION)
            for number, extra in enumerate(arm.get("epochs", ())):
                append_metrics(folder / name, EpochMetrics(number + 1, 0.1, 0.5, 1.0, extra))
            if "evaluation" in arm:
                arm["evaluation"].save(folder / name / EVALUATION)
            if "trace" in arm:
                arm["trace"].save(folder / name / "trace.safetensors")
        return RunFolder(folder)

    return write


ROBUST = {"baseline": (30, 32, 37), "poe": (45, 40, 44), "largest": (41, 42, 43)}  # of 100 images, per seed
EDGE = LipschitzEstimate(4.0, (3.5, 4.0), "edge", True, "6 runs")


@pytest.fixture
def three_seeds(write_run: RunWriter, evaluated: Callable[..., Evaluation]) -> list[RunFolder]:
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
