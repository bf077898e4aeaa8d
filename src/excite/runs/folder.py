"""A run folder and its arms: the only place that knows where a run keeps what, and how to read it."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from excite.errors import InputError
from excite.files import expected, read_as, read_json
from excite.lipschitz.protocol import LipschitzEstimate
from excite.runs.arms import OWN, Arm, arm_named, in_order
from excite.runs.experiment import Experiment, from_recorded
from excite.runs.stored import Certified, Illustration, Outcome, StageDone, StoredEstimate, read_stages
from excite.training import history
from excite.training.history import EpochMetrics

if TYPE_CHECKING:
    from torch import nn

    from excite.evaluation.result import Evaluation, Flag
    from excite.trace import Trace

EXPERIMENT, ESTIMATE, OUTCOME, EVALUATION = "experiment.json", "estimate.json", "outcome.json", "evaluation.json"
ILLUSTRATION, ESTIMATES, BEST, CERTIFICATE = "illustration.json", "estimates", "best", "certificate.json"


class _HasPath(Protocol):
    @property
    def path(self) -> Path: ...


def _inside(name: str) -> cached_property[Path]:
    """What has this name in a folder."""

    def place(folder: _HasPath) -> Path:
        return folder.path / name

    return cached_property(place)


@dataclass(frozen=True, eq=False)
class ArmFolder:
    """One arm of a run. What has been read is kept: look again with a new object."""

    path: Path

    outcome_file = _inside(OUTCOME)
    evaluation_file = _inside(EVALUATION)
    journal_file = _inside("evaluation.journal")
    trace_file = _inside("trace.safetensors")
    metrics_file = _inside(history.METRICS)
    checkpoint_file = _inside(history.CHECKPOINT)
    certificate_file = _inside(CERTIFICATE)
    search_file = _inside("search.json")
    moments = _inside("moments")  # the recorder's vectors, while it trains
    trials = _inside("search")  # what the trials of a grid search have reached, while it searches

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def arm(self) -> Arm:
        return arm_named(self.name)

    @property
    def title(self) -> str:
        return self.arm.title

    @property
    def short_title(self) -> str:
        return self.arm.short_title

    @property
    def best_of_grid(self) -> float:
        """The rate that its grid search prefers."""
        with expected(self.search_file):
            return float(read_json(self.search_file)["winner"])

    @cached_property
    def certified(self) -> Certified | None:
        """What the theorem says of its path, if it trained to its end and was recorded."""
        return read_as(self.certificate_file, Certified) if self.certificate_file.exists() else None

    @property
    def trained(self) -> bool:
        """Whether its training has ended, well or not."""
        return self.outcome_file.exists()

    @cached_property
    def outcome(self) -> Outcome:
        """How its training ended."""
        return read_as(self.outcome_file, Outcome)

    @property
    def rate(self) -> float:
        """η¹."""
        return self.outcome.rate

    @property
    def problem(self) -> str | None:
        """Why it diverged, if it did."""
        return self.outcome.problem

    @cached_property
    def epochs(self) -> tuple[EpochMetrics, ...]:
        found = tuple(history.read(self.path))
        if self.trained and (trained := self.outcome.epochs) is not None:
            with expected(self.metrics_file):
                if len(found) != trained:
                    raise ValueError(f"it tells of {len(found)} epochs, {OUTCOME} of {trained}")
                if found and not self.arm.finds_its_rate and not math.isclose(found[0].rate, self.rate):
                    raise ValueError(f"it begins at the rate {found[0].rate}, {OUTCOME} says {self.rate}")
        return found

    @cached_property
    def evaluation(self) -> "Evaluation | None":
        from excite.evaluation.result import Evaluation

        return Evaluation.load(self.evaluation_file) if self.evaluation_file.exists() else None

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint_file.exists()

    def trace(self) -> "Trace | None":
        """What the recorder noted of its training, if it trained to its end."""
        from excite.trace import Trace

        there = self.trained and not self.problem and self.trace_file.exists()
        return Trace.load(self.trace_file) if there else None

    @property
    def doubts(self) -> "list[tuple[str, Flag]]":
        """What the trust checks warn of, each with a name for the weights: "" for the last, ", best weights"."""
        judged = {"": self.evaluation, ", best weights": self.best.evaluation}
        return [(whose, flag) for whose, evaluation in judged.items() if evaluation for flag in evaluation.flags]

    @cached_property
    def best(self) -> "ArmFolder":
        """The weights of the epoch that stood best on held-out images, and their evaluation, if the experiment asks."""
        return ArmFolder(self.path / BEST)

    @property
    def best_epoch(self) -> int | None:
        if not self.best.has_checkpoint:
            return None
        with expected(self.best.checkpoint_file):
            return int(read_json(self.best.checkpoint_file)["epoch"])

    def load_into(self, model: "nn.Module") -> "nn.Module":
        """Put its weights into `model`."""
        from excite.training import checkpoints

        return checkpoints.load_model(self.path, model)

    def tidy(self) -> None:
        """Remove what a killed process left of stages that are finished."""
        if self.trained:
            shutil.rmtree(self.moments, ignore_errors=True)
        if self.search_file.exists():
            shutil.rmtree(self.trials, ignore_errors=True)
        if self.evaluation_file.exists():
            self.journal_file.unlink(missing_ok=True)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "rate": self.rate,
            "training_seconds": self.outcome.seconds,
            "problem": self.problem,
            "batch_size": self.outcome.batch_size,
            "steps": self.outcome.steps,
            "train_accuracy": self.outcome.train_accuracy,
            "best_epoch": self.best_epoch,
            "best_evaluation": self.best.evaluation.to_json() if self.best.evaluation else None,
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "evaluation": self.evaluation.to_json() if self.evaluation else None,
        }

    def __str__(self) -> str:
        last = f"{self.epochs[-1]}" if self.epochs else "no epoch finished"
        return f"{self.title}: {self.problem or last}; {self.outcome.seconds:.1f} s in all"


def arm_title(arms: Sequence[ArmFolder]) -> str:
    """What an arm is called, over its seeds: 2/L at which a training diverged is not "largest convergent"."""
    return arms[0].short_title if any(arm.problem for arm in arms) else arms[0].title


@dataclass(frozen=True, eq=False)
class RunFolder:
    """One run, read stage by stage; stages that are not finished are left out. What has been read is kept."""

    path: Path

    experiment_file = _inside(EXPERIMENT)
    illustration_file = _inside(ILLUSTRATION)
    teacher = _inside("teacher")  # where a teacher is trained

    def estimate_file(self, estimator: str = OWN) -> Path:
        """L by the experiment's own estimator, or by another one that its name calls up."""
        return self.path / ESTIMATES / f"{estimator}.json" if estimator else self.path / ESTIMATE

    @property
    def pseudo_labels_file(self) -> Path:
        return self.teacher / "pseudo.npz"

    def log_file(self, task: str) -> Path:
        """What a sweep's job says."""
        return self.path / f"{task}.log"

    @property
    def exists(self) -> bool:
        return self.experiment_file.exists()

    @cached_property
    def experiment(self) -> Experiment:
        if not self.exists:
            raise InputError(f"{self.path} is not a run folder: it has no {EXPERIMENT}. `excite run` makes one.")
        with expected(self.experiment_file):
            return from_recorded(read_json(self.experiment_file))

    @cached_property
    def estimates(self) -> dict[str, "StoredEstimate"]:
        """L by every estimator that was asked; the experiment's own comes first, as OWN."""
        others = {path.stem: path for path in sorted((self.path / ESTIMATES).glob("*.json"))}
        files = {OWN: self.estimate_file(), **others}
        return {name: read_as(path, StoredEstimate) for name, path in files.items() if path.exists()}

    @property
    def estimate(self) -> LipschitzEstimate | None:
        """L by the experiment's own estimator."""
        own = self.estimates.get(OWN)
        return own.estimate if own else None

    def estimate_of(self, arm: str) -> LipschitzEstimate | None:
        """L as its arm was given it; the experiment's own for arms that need none."""
        stored = self.estimates.get(arm_named(arm).estimator or OWN)
        return stored.estimate if stored else None

    @property
    def estimate_seconds(self) -> float:
        own = self.estimates.get(OWN)
        return own.seconds if own else 0.0

    @cached_property
    def illustration(self) -> Illustration | None:
        """A few test images under attack, as the page shows them."""
        return read_as(self.illustration_file, Illustration) if self.illustration_file.exists() else None

    @cached_property
    def stages(self) -> tuple[StageDone, ...]:
        """When and on what its stages were done; none in a folder of before that was kept."""
        return read_stages(self.path)

    @cached_property
    def arms(self) -> tuple[ArmFolder, ...]:
        """The arms whose training has ended, grid searches last."""
        return tuple(self.arm(name) for name in in_order({path.parent.name for path in self.path.glob(f"*/{OUTCOME}")}))

    def arm(self, name: str) -> ArmFolder:
        return ArmFolder(self.path / name)

    def files(self) -> list[Path]:
        """Every file that its stages rely on; pseudo-labels check themselves when they are read."""
        return [
            path
            for pattern in ("*.json", "*/*.json", "*/*.jsonl", "*/*.journal", "*/*.safetensors", "*/best/[!.]*")
            for path in sorted(self.path.glob(pattern))
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.to_json(),
            "estimate": self.estimate.to_json() if self.estimate else None,
            "estimate_seconds": self.estimate_seconds,
            "arms": [arm.to_json() for arm in self.arms],
            "stages": [asdict(stage) for stage in self.stages],
        }


@dataclass(frozen=True)
class StoredRates:
    """What an arm's rate may rest on, read from the stages that came before."""

    run: RunFolder
    rate: float  # the baseline's

    def baseline(self) -> float:
        return self.rate

    def estimate(self, estimator: str) -> LipschitzEstimate:
        stored = read_as(self.run.estimate_file(estimator), StoredEstimate)
        if stored.estimate is None:
            raise InputError(stored.problem)
        return stored.estimate

    def best_of_grid(self, arm: str) -> float:
        return self.run.arm(arm).best_of_grid


def arm_titles(runs: Sequence[RunFolder]) -> dict[str, str]:
    """Of every arm of the runs, by its name."""
    arms: dict[str, list[ArmFolder]] = {}
    for arm in (arm for run in runs for arm in run.arms):
        arms.setdefault(arm.name, []).append(arm)
    return {name: arm_title(several) for name, several in arms.items()}


def run_folders_in(folder: Path) -> list[RunFolder]:
    """The run folders at any depth."""
    return [RunFolder(path.parent) for path in sorted(folder.rglob(EXPERIMENT))]
