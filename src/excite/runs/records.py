"""The records that the stages of a run write and everything else reads, each in one JSON file."""

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec

import excite
from excite.files import locked, read_as, write_json
from excite.lipschitz.protocol import LipschitzEstimate

if TYPE_CHECKING:
    import torch

CLEAN_LOSS = 0.02  # clean accuracy that the winner of a grid search may lose against the best trial


class Record(msgspec.Struct, frozen=True):
    """Fields with a default may be missing from files of older versions."""

    def save(self, path: Path) -> None:
        write_json(path, msgspec.to_builtins(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the record; raise CorruptFileError if the file does not hold one."""
        return read_as(path, cls)

    def to_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


class StoredEstimate(Record, frozen=True):
    """An estimate of L, or the reason why there is none."""

    estimate: LipschitzEstimate | None
    seconds: float
    problem: str = ""
    options: dict[str, Any] = {}  # of the estimator, as in the experiment


class Outcome(Record, frozen=True):
    """How the training of an arm ended."""

    rate: float  # η¹
    seconds: float  # spent in training steps
    problem: str | None  # why the training diverged, if it did
    epochs: int | None = None
    batch_size: int | None = None
    steps: int | None = None  # in finished epochs
    train_accuracy: float | None = None  # of the final weights, on training images


class Trial(Record, frozen=True):
    """A short training at one rate: its accuracies on held-out images, or the reason why it has none."""

    rate: float
    clean_accuracy: float | None
    robust_accuracy: float | None
    problem: str | None

    def __str__(self) -> str:
        if self.robust_accuracy is None or self.clean_accuracy is None:
            return f"{self.rate:.3g}: diverged"
        return f"{self.rate:.3g}: {self.robust_accuracy:.1%} and {self.clean_accuracy:.1%}"


class GridSearch(Record, frozen=True):
    """Short trainings at several rates with the same number of steps each, and the best rate."""

    trials: tuple[Trial, ...]
    winner: float
    steps: int  # per trial
    budget: int  # steps of all trials together
    held_out: int  # images
    attack: str

    def __str__(self) -> str:
        return (
            f"Grid search: {self.winner:.3g} is the most robust rate under {self.attack} whose clean accuracy is "
            f"within {100 * CLEAN_LOSS:g} points of the best, on {self.held_out} held-out images after {self.steps} "
            f"steps each (robust and clean accuracy by rate: {', '.join(map(str, self.trials))})."
        )


class Certified(Record, frozen=True):
    """Assumptions 1 and 2 and Definition 1 along the training of an arm. A step leads from one epoch to the next."""

    steps: int
    certified: int  # steps with an exact persistently excited ΦΦᵀ
    acute: int  # steps at which Assumption 2 holds
    slopes: int  # number of recorded slopes, for Assumption 1
    largest_slope: float | None  # at most L under Assumption 1
    slowest: float | None  # μ₁ over windows of one step, if any step is certified
    fastest: float | None  # μ₂
    mean_rate: float | None  # at which errors shrink per certified step
    conclusion: str
    acute_in_expectation: int | None = None  # moments at which one step of SGD is; None if it was not measured
    batch_size_for_half: int | None = None  # enough for a step to be so at half of the moments, if any batch is


class Prediction(Record, frozen=True):
    name: str
    confidence: float
    right: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.confidence:.0%})"


class Attacked(Record, frozen=True):
    """One image, attacked against one arm. Pictures are PNG data URIs."""

    arm: str
    perturbation: str
    picture: str
    before: Prediction
    after: Prediction


class Example(Record, frozen=True):
    number: int  # index among the test images of the run
    name: str  # true class
    picture: str
    attacked: tuple[Attacked, ...]


class Illustration(Record, frozen=True):
    """A few test images under attack, for the page."""

    attack: str
    chosen: str  # how the images were chosen
    largest: float  # largest change of a pixel; shown as black or white in pictures of the perturbation
    examples: tuple[Example, ...]
    arms: tuple[str, ...]  # names of the attacked arms

    @property
    def magnification(self) -> float:
        return 0.5 / self.largest if self.largest else 1.0


FolderName = Annotated[str, msgspec.Meta(pattern=r"^[^/\\]*[^/\\.][^/\\]*$")]  # not a path, nor . or ..


class Study(Record, frozen=True):
    """The names of a study's run folders, in the order in which they were begun."""

    runs: tuple[FolderName, ...]


STAGES = "stages.json"
PACKAGES = ("torch", "numpy")  # whose versions can change the last digits


class Circumstances(Record, frozen=True):
    """The machine and software that a stage ran on."""

    machine: str
    device: str
    threads: int
    versions: dict[str, str]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.machine}; {self.device}, {threads}; {versions}"


class StageDone(Record, frozen=True):
    """One attempt at a stage. `file` is the file that the stage writes, relative to the run folder."""

    file: str
    began: str  # 2026-11-16T17:05:00+00:00
    seconds: float
    finished: bool
    circumstances: Circumstances

    @property
    def ended(self) -> float:
        """Seconds since 1970."""
        return datetime.fromisoformat(self.began).timestamp() + self.seconds


class _Stages(Record, frozen=True):
    stages: tuple[StageDone, ...]


def read_stages(folder: Path) -> tuple[StageDone, ...]:
    """Return the stages of a run in the order in which they ended; older run folders have none."""
    path = folder / STAGES
    return _Stages.load(path).stages if path.exists() else ()


@contextlib.contextmanager
def recorded_stage(folder: Path, file: Path, device: "torch.device") -> Iterator[None]:
    """Record when and where the stage that writes `file` ran and how long it took, even if it is stopped."""
    began, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    try:
        yield
    finally:
        name, seconds = file.relative_to(folder).as_posix(), time.monotonic() - start
        stage = StageDone(name, began, seconds, file.exists(), circumstances(device))
        with locked(folder / STAGES):  # other processes may add stages at the same time
            _Stages((*read_stages(folder), stage)).save(folder / STAGES)


def circumstances(device: "torch.device") -> Circumstances:
    """Describe the machine and software that this process runs on."""
    import torch

    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {"excite": excite.__version__, "Python": platform.python_version()}
    return Circumstances(
        machine=f"{platform.system()} {platform.machine()}, {_processor()}, {n_cores} core{'s' * (n_cores != 1)}",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        threads=torch.get_num_threads(),
        versions=versions | {name: version(name) for name in PACKAGES},
    )


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "an unnamed processor")
