"""What a run folder says so far: one row per arm, read from the files its stages left."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from excite.errors import InputError
from excite.evaluation import Evaluation
from excite.files import read_json
from excite.lipschitz.estimate import LipschitzEstimate
from excite.runs.arms import ARMS, arm_named
from excite.runs.experiment import Experiment, from_values
from excite.training import history
from excite.training.history import EpochMetrics

EXPERIMENT, ESTIMATE, OUTCOME, EVALUATION = "experiment.json", "estimate.json", "outcome.json", "evaluation.json"


@dataclass(frozen=True, eq=False)
class ArmResult:
    name: str
    rate: float
    seconds: float
    problem: str | None  # why it diverged, if it did
    epochs: tuple[EpochMetrics, ...]
    evaluation: Evaluation | None

    @property
    def title(self) -> str:
        return arm_named(self.name).title

    def __str__(self) -> str:
        last = f"{self.epochs[-1]}" if self.epochs else "no epoch finished"
        return f"{self.title}: {self.problem or last}; {self.seconds:.1f} s in all"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "rate": self.rate,
            "training_seconds": self.seconds,
            "problem": self.problem,
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "evaluation": self.evaluation.to_json() if self.evaluation else None,
        }


@dataclass(frozen=True, eq=False)
class Results:
    folder: Path
    experiment: Experiment
    arms: tuple[ArmResult, ...]
    estimate: LipschitzEstimate | None
    estimate_seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.to_json(),
            "estimate": self.estimate.to_json() if self.estimate else None,
            "estimate_seconds": self.estimate_seconds,
            "arms": [arm.to_json() for arm in self.arms],
        }


def load_results(folder: Path) -> Results:
    """Read a run folder; stages that are not finished are left out."""
    if not (folder / EXPERIMENT).exists():
        raise InputError(f"{folder} is not a run folder: it has no {EXPERIMENT}. `excite run` makes one.")
    estimate = read_json(folder / ESTIMATE) if (folder / ESTIMATE).exists() else None
    return Results(
        folder=folder,
        experiment=from_values(read_json(folder / EXPERIMENT)),
        arms=tuple(load_arm(folder, name) for name in _trained_arms(folder)),
        estimate=LipschitzEstimate.from_json(estimate["estimate"]) if estimate else None,
        estimate_seconds=estimate["seconds"] if estimate else 0.0,
    )


def load_arm(folder: Path, name: str) -> ArmResult:
    """Read one trained arm of a run folder."""
    outcome = read_json(folder / name / OUTCOME)
    evaluation = folder / name / EVALUATION
    return ArmResult(
        name=name,
        rate=outcome["rate"],
        seconds=outcome["seconds"],
        problem=outcome["problem"],
        epochs=tuple(history.read(folder / name)),
        evaluation=Evaluation.load(evaluation) if evaluation.exists() else None,
    )


def _trained_arms(folder: Path) -> list[str]:
    """The arms that have an outcome, grid searches last."""
    trained = {path.parent.name for path in folder.glob(f"*/{OUTCOME}")}
    searches = [name for name in trained if name.startswith("grid-")]
    return [
        *(name for name in ARMS if name in trained),
        *sorted(searches, key=lambda name: arm_named(name).rates or 0),
    ]
