"""Run folders, their arms, and studies of several runs: the names of all files, and how to read them."""

import logging
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from excite.errors import CorruptFileError, DivergedError, ExciteError, InputError
from excite.files import expected, locked, read_json
from excite.lipschitz.protocol import LipschitzEstimate
from excite.runs.arms import OWN, Arm, arm_named, in_order
from excite.runs.experiment import Experiment, from_recorded
from excite.runs.records import (
    Certified,
    GridSearch,
    Illustration,
    Outcome,
    StageDone,
    StoredEstimate,
    Study,
    read_stages,
)
from excite.training import CHECKPOINT, METRICS, EpochMetrics, read_metrics

if TYPE_CHECKING:
    from torch import nn

    from excite.evaluation.result import Evaluation, Flag
    from excite.trace import Trace

EXPERIMENT, ESTIMATE, OUTCOME, EVALUATION = "experiment.json", "estimate.json", "outcome.json", "evaluation.json"
ESTIMATES = "estimates"
STUDY = "excite-study.json"  # in the folder that holds the runs of a study
Weights = Literal["last", "best", "averaged"]  # of an arm; all but the last are in subfolders of these names
FURTHER: tuple[Weights, ...] = ("best", "averaged")

logger = logging.getLogger(__name__)


def _inside(name: str) -> "cached_property[Path]":
    """The file or folder of this name inside a folder."""
    return cached_property(lambda folder: folder.path / name)


@dataclass(frozen=True, eq=False)
class ArmFolder:
    """One arm of a run. Contents are cached once read; make a new object to read them again."""

    path: Path

    outcome_file = _inside(OUTCOME)
    evaluation_file = _inside(EVALUATION)
    journal_file = _inside("evaluation.journal")
    trace_file = _inside("trace.safetensors")
    metrics_file = _inside(METRICS)
    checkpoint_file = _inside(CHECKPOINT)
    certificate_file = _inside("certificate.json")
    search_file = _inside("search.json")
    moments = _inside("moments")  # the recorder's vectors, during training
    trials = _inside("search")  # the trials of a grid search, during the search

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

    @cached_property
    def certified(self) -> Certified | None:
        """What the theorem says about its training; None if it diverged or was not recorded."""
        return Certified.load(self.certificate_file) if self.certificate_file.exists() else None

    @property
    def trained(self) -> bool:
        """Whether its training is over; it may have diverged."""
        return self.outcome_file.exists()

    @cached_property
    def outcome(self) -> Outcome:
        return Outcome.load(self.outcome_file)

    @property
    def rate(self) -> float:
        """η¹."""
        return self.outcome.rate

    @property
    def problem(self) -> str | None:
        """Why it diverged; None if it did not."""
        return self.outcome.problem

    @property
    def failed(self) -> bool:
        """Whether the training diverged or learned nothing."""
        return bool(self.problem or (self.evaluation and self.evaluation.learned_nothing))

    @cached_property
    def epochs(self) -> tuple[EpochMetrics, ...]:
        epochs = tuple(read_metrics(self.path))
        if self.trained and self.outcome.epochs not in (None, len(epochs)):
            raise CorruptFileError(
                f"{self.metrics_file} has {len(epochs)} epochs, but {self.outcome_file} says {self.outcome.epochs}. "
                f"Restore it. {RunFolder(self.path.parent).again(self.name)}"
            )
        return epochs

    @cached_property
    def evaluation(self) -> "Evaluation | None":
        from excite.evaluation.result import Evaluation

        return Evaluation.load(self.evaluation_file) if self.evaluation_file.exists() else None

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint_file.exists()

    def trace(self) -> "Trace | None":
        """The recorder's trace; None if training has not ended or diverged."""
        from excite.trace import Trace

        there = self.trained and not self.problem and self.trace_file.exists()
        return Trace.load(self.trace_file) if there else None

    @property
    def doubts(self) -> "list[tuple[str, Flag]]":
        """The warnings of the trust checks, each after "" (last weights), ", best weights" or ", averaged weights"."""
        evaluations = {"": self.evaluation} | {f", {which} weights": self.of(which).evaluation for which in FURTHER}
        return [(which, flag) for which, evaluation in evaluations.items() if evaluation for flag in evaluation.flags]

    def of(self, weights: Weights) -> "ArmFolder":
        """The folder of these weights and their evaluation; it exists if the experiment keeps them."""
        return self if weights == "last" else self.further[FURTHER.index(weights)]

    @cached_property
    def further(self) -> "tuple[ArmFolder, ...]":
        """The folders of the best and of the averaged weights."""
        return tuple(ArmFolder(self.path / weights) for weights in FURTHER)

    @property
    def best_epoch(self) -> int | None:
        best = self.of("best")
        if not best.has_checkpoint:
            return None
        with expected(best.checkpoint_file):
            return int(read_json(best.checkpoint_file)["epoch"])

    def load_into(self, model: "nn.Module") -> "nn.Module":
        """Load its weights into `model`."""
        from excite.training import checkpoints

        return checkpoints.load_model(self.path, model)

    def to_json(self) -> dict[str, Any]:
        evaluations = {f"{weights}_evaluation": self.of(weights).evaluation for weights in FURTHER}
        evaluations["evaluation"] = self.evaluation
        return {
            **self.outcome.to_json(),
            "name": self.name,
            "title": self.title,
            "best_epoch": self.best_epoch,
            "epochs": [asdict(epoch) for epoch in self.epochs],
            **{key: evaluation and evaluation.to_json() for key, evaluation in evaluations.items()},
        }

    def __str__(self) -> str:
        last = f"{self.epochs[-1]}" if self.epochs else "no epoch finished"
        return f"{self.title}: {self.problem or last}; {self.outcome.seconds:.1f} s in all"


def arm_at(path: Path, arm: str) -> tuple[Path, str]:
    """The run folder and the arm that a path names: the folder of an arm, or a run folder, of which `arm` is meant."""
    if (path.parent / EXPERIMENT).exists() and not (path / EXPERIMENT).exists():
        return path.parent, path.name
    return path, arm_named(arm).name


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The finished stages of one run. Contents are cached once read; make a new object to read them again."""

    path: Path

    experiment_file = _inside(EXPERIMENT)
    illustration_file = _inside("illustration.json")
    teacher = _inside("teacher")
    pseudo_labels_file = _inside("teacher/pseudo.npz")

    def estimate_file(self, estimator: str = OWN) -> Path:
        return self.path / ESTIMATES / f"{estimator}.json" if estimator else self.path / ESTIMATE

    @property
    def quoted(self) -> str:
        """Its path as an argument of a command."""
        return shlex.quote(str(self.path))

    @property
    def exists(self) -> bool:
        return self.experiment_file.is_file()

    @cached_property
    def experiment(self) -> Experiment:
        if not self.exists:
            raise InputError(
                f"{self.path} is not a run folder: it has no {EXPERIMENT}. `excite run EXPERIMENT --out {self.quoted}` "
                "writes it."
            )
        with expected(self.experiment_file):
            return from_recorded(read_json(self.experiment_file))

    @cached_property
    def estimates(self) -> dict[str, "StoredEstimate"]:
        """L by estimator; the experiment's own comes first, under the name OWN."""
        others = {path.stem: path for path in sorted((self.path / ESTIMATES).glob("*.json"))}
        files = {OWN: self.estimate_file(), **others}
        return {name: StoredEstimate.load(path) for name, path in files.items() if path.exists()}

    def options_of(self, estimator: str) -> Mapping[str, Any]:
        """The options with which an estimate was made; the experiment may have got this preset later."""
        return self.estimates[estimator].options or self.experiment.options_of(estimator)

    @property
    def estimate(self) -> LipschitzEstimate | None:
        """L by the experiment's own estimator."""
        return self.estimate_of("baseline")

    def estimate_of(self, arm: str) -> LipschitzEstimate | None:
        """The L that the arm uses; the experiment's own L for arms that need none."""
        stored = self.estimates.get(arm_named(arm).estimator or OWN)
        return stored.estimate if stored else None

    @cached_property
    def illustration(self) -> Illustration | None:
        return Illustration.load(self.illustration_file) if self.illustration_file.exists() else None

    @cached_property
    def stages(self) -> tuple[StageDone, ...]:
        """When and where its stages ran; empty in run folders of older versions."""
        return read_stages(self.path)

    @property
    def seconds(self) -> float:
        """The time that all stages took; of older run folders, only the time of training steps is known."""
        return sum(stage.seconds for stage in self.stages) or sum(arm.outcome.seconds for arm in self.arms)

    @cached_property
    def arms(self) -> tuple[ArmFolder, ...]:
        """The arms whose training is over, grid searches last."""
        self.refuse_links()
        return tuple(self.arm(name) for name in in_order({path.parent.name for path in self.path.glob(f"*/{OUTCOME}")}))

    def arm(self, name: str) -> ArmFolder:
        return ArmFolder(self.path / name)

    def needed_arm(self, arm: str) -> ArmFolder:
        """Return a trained arm; raise an error if it is not trained or diverged."""
        files = self.arm(arm)
        if not files.trained:
            trained = ", ".join(folder.name for folder in self.arms) or "none"
            raise InputError(
                f"{self.path} has no trained arm {arm} (trained: {trained}). "
                f"`excite train {self.quoted} --arm {arm}` trains it."
            )
        if files.problem:
            raise DivergedError(files.problem)
        return files

    def needed_model(self, arm: str) -> ArmFolder:
        """Return a trained arm with weights."""
        if not (files := self.needed_arm(arm)).has_checkpoint:
            raise InputError(f"{files.path} has lost its weights. {self.again(arm)}")
        return files

    def needed_trace(self, arm: str) -> "Trace":
        if arm_named(arm).finds_its_rate:
            raise InputError(
                f"The arm {arm} records no trace, because it rolls steps back. Name another arm, such as poe."
            )
        if (trace := self.needed_arm(arm).trace()) is None:
            raise InputError(f"{self.path / arm} has lost its trace. {self.again(arm)}")
        return trace

    def again(self, arm: str) -> str:
        """Say how to train an arm again that has lost a file."""
        return f"To train it again, delete {self.path / arm}; `excite train {self.quoted} --arm {arm}` does the rest."

    def needed_estimate(self, name: str = OWN) -> LipschitzEstimate:
        """Return L by the run's own estimator, or by the estimator `name`."""
        stored = self.estimates.get(name)
        if stored is None or stored.estimate is None:
            method, flags = name or self.experiment.lipschitz["method"], "--compare --train" if name else "--train"
            raise InputError(
                f"{self.path} has no estimate of L. `excite estimate {self.quoted} {flags}` makes one by {method}, "
                "with the trainings that it needs."
            )
        return stored.estimate

    def stored_estimates(self) -> dict[str, LipschitzEstimate | str]:
        """Return L by every estimator; where it is missing, the reason, or the command that makes it."""
        stored = {name: answer.estimate or answer.problem for name, answer in self.estimates.items()}
        missing = f"not estimated in this run; `excite estimate {self.quoted} --compare --train` does it"
        return {title: stored.get(name, missing) for name, title in self.experiment.every_estimator().items()}

    def first_rate(self, arm: Arm, baseline: float) -> float:
        """Return η¹ of an arm, from the baseline's rate and what earlier stages have found."""
        if arm.rates is not None:
            return GridSearch.load(self.arm(arm.name).search_file).winner
        if arm.multiple is not None:
            return self.needed_estimate(arm.estimator or OWN).learning_rate(arm.multiple)
        return baseline / 5 if arm.finds_its_rate else arm.of_baseline * baseline

    def check_rate(self, arm: ArmFolder, baseline: float) -> None:
        """Refuse an arm that was trained at another rate than its L or its grid search gives now, if it is stored."""
        if not arm.trained or arm.arm.finds_its_rate:
            return
        try:
            rate = self.first_rate(arm.arm, baseline)
        except (FileNotFoundError, InputError):
            return
        if not math.isclose(rate, arm.rate):
            raise CorruptFileError(
                f"{arm.path} was trained at the rate {arm.rate:.6g}, but by the L or the search in {self.path} it is "
                f"{rate:.6g}. Restore the original file, or delete {arm.path} to train again."
            )

    def batch_size(self, arm: Arm, baseline: float, default: int) -> int:
        """Return the images per step of an arm, from the experiment's number and the baseline's rate."""
        if arm.same_ratio:
            return max(1, round(default * baseline / self.needed_estimate().learning_rate(1.0)))
        return arm.size or default

    def files(self) -> list[Path]:
        """Every file that stages read; pseudo-labels are left out, since they are checked whenever they are read."""
        further = (f"*/{weights}/[!.]*" for weights in FURTHER)
        patterns = ("*.json", "*/*.json", "*/*.jsonl", "*/*.journal", "*/*.safetensors", *further)
        return [path for pattern in patterns for path in sorted(self.path.glob(pattern))]

    def refuse_links(self) -> None:
        """Raise an error if one of its files or folders is a link: a run writes only inside its own folder."""
        arms = in_order({path.name for path in self.path.glob("*")})
        folders = [self.path / name for name in (ESTIMATES, "teacher", *arms)]
        inside = [path for folder in folders for path in folder.rglob("*")]
        for path in (*self.path.glob("*.json"), *folders, *inside):
            if path.is_symlink():
                raise CorruptFileError(f"{path} is a link. Put a copy of what it points to in its place, or delete it.")

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.to_json(),
            "estimate": self.estimate.to_json() if self.estimate else None,
            "arms": [arm.to_json() for arm in self.arms],
            "stages": [stage.to_json() for stage in self.stages],
        }


def run_folders_in(folder: Path) -> Iterator[RunFolder]:
    """Yield all runs in `folder`, at any depth, without copies inside a study and files of other tools."""
    runs = (RunFolder(path.parent) for path in sorted(folder.rglob(EXPERIMENT)) if path.is_file())
    return (run for run in runs if run.path == folder or _counts(run))


def _counts(run: RunFolder) -> bool:
    """Whether a run counts that nobody named; one that a study leaves out gets a warning."""
    study, is_run = study_in(run.path.parent), True
    if run.path in [member.path for member in study]:
        return True
    try:
        counts = run.experiment.settings() not in [member.experiment.settings() for member in study]
    except (ExciteError, OSError):
        is_run = any(run.path.glob(f"*/{OUTCOME}"))
        counts = is_run and not study
    if is_run and not counts:
        logger.warning("%s is left out, because it is a copy of a run of the study, or damaged.", run.path)
    return counts


def study_in(folder: Path) -> tuple[RunFolder, ...]:
    """Return the runs of the study in `folder`, in the order in which they were begun; () if there is no study."""
    file = folder / STUDY
    return tuple(RunFolder(folder / name) for name in Study.load(file).runs) if file.is_file() else ()


def run_folders(experiment: Experiment, folder: Path, seeds: int | None) -> dict[Path, Experiment]:
    """Return the run folders of an experiment: `folder` itself, or one inside it for each of the seeds 0, 1, …"""
    if seeds is None:
        if not RunFolder(folder).exists and any(run_folders_in(folder)):
            raise InputError(
                f"{folder} holds several runs. Name a new folder with --out for a single run, or pass --seeds."
            )
        return {folder: experiment}
    check_not_a_run(folder)
    return {folder / f"seed-{seed}": experiment.with_values({"seed": seed}) for seed in range(seeds)}


def check_not_a_run(folder: Path) -> None:
    """Refuse to put several runs into the folder of a single run: a seed could be counted twice."""
    if RunFolder(folder).exists:
        raise InputError(
            f"{folder} holds a single run. Name a new folder with --out for several runs, or delete this one."
        )


def begin_study(folder: Path, runs: Iterable[Path]) -> None:
    """Record that the runs in `folder` form a study, or join it: only they share its L, not what else lies there."""
    file = folder / STUDY
    with locked(file):
        known = Study.load(file).runs if file.exists() else ()
        names = tuple(dict.fromkeys([*known, *(run.name for run in runs)]))
        if names != known:
            Study(names).save(file)


def collect(folders: Iterable[Path]) -> tuple[RunFolder, ...]:
    """Return every run in `folders`, at any depth, each once."""
    collected: dict[Path, RunFolder] = {}
    for folder in folders:
        runs = list(run_folders_in(folder))
        if not runs:
            raise InputError(
                f"{folder} holds no run. Start one with `excite run EXPERIMENT --out {RunFolder(folder).quoted}`."
            )
        for run in runs:
            collected.setdefault(run.path.resolve(), run)
    return tuple(collected.values())
