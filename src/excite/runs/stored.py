"""What stages leave beside weights and verdicts, as stored: L, the certificate, attacked images, when and on what."""

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import excite
from excite.errors import ExciteError
from excite.files import locked, read_as, write_json
from excite.lipschitz.protocol import LipschitzEstimate

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StoredEstimate:
    """L and what finding it took, or why the estimator has no answer."""

    estimate: LipschitzEstimate | None
    seconds: float
    problem: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # as the experiment said


@dataclass(frozen=True)
class Outcome:
    """How a training ended; what may be missing is unknown of those that older versions wrote down."""

    rate: float  # η¹
    seconds: float
    problem: str | None  # why it diverged, if it did
    epochs: int | None = None
    batch_size: int | None = None
    steps: int | None = None  # of its finished epochs
    train_accuracy: float | None = None  # on images that it was trained on, at the end
    largest_batch: int | None = None  # all images of an epoch, where a batch cannot be larger


def fitting(batch_size: int, largest: int | None) -> int:
    """A batch size that was asked for, or all images where there are fewer."""
    return batch_size if largest is None else min(batch_size, largest)


@dataclass(frozen=True)
class Certified:
    """Both assumptions and Definition 1 along an arm's path; a step goes from one epoch to the next."""

    steps: int
    certified: int  # steps with an exact persistently excited ΦΦᵀ
    acute: int  # steps where Assumption 2 holds
    slopes: int  # recorded ones, for Assumption 1
    largest_slope: float | None  # which Assumption 1 wants at most L
    slowest: float | None  # μ₁ over windows of one step, if any step is certified
    fastest: float | None  # μ₂
    mean_rate: float | None  # at which errors shrink, per certified step
    conclusion: str


@dataclass(frozen=True)
class Prediction:
    name: str
    confidence: float
    right: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.confidence:.0%})"


@dataclass(frozen=True)
class Attacked:
    """One image under attack against one arm; pictures are PNG data URIs."""

    arm: str
    perturbation: str
    picture: str
    before: Prediction
    after: Prediction


@dataclass(frozen=True)
class Example:
    number: int  # of the run's test images, from 0
    name: str  # what it truly shows
    picture: str
    attacked: tuple[Attacked, ...]


@dataclass(frozen=True)
class Illustration:
    attack: str
    chosen: str  # how the images were chosen
    largest: float  # the largest change of a pixel, which the perturbation's pictures show as black or white
    examples: tuple[Example, ...]
    arms: tuple[str, ...]  # folders of the checkpoints

    @property
    def magnification(self) -> float:
        return 0.5 / self.largest if self.largest else 1.0


STAGES = "stages.json"
PACKAGES = ("torch", "numpy")  # that decide the last digits


@dataclass(frozen=True)
class Circumstances:
    """What a stage ran on."""

    machine: str
    device: str
    threads: int
    versions: dict[str, str]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.machine}; {self.device}, {threads}; {versions}"


@dataclass(frozen=True)
class StageDone:
    """One go at a stage: the file it leaves, seen from the run's folder, and whether it got to its end."""

    file: str
    began: str  # 2026-11-16T17:05:00+00:00
    seconds: float
    finished: bool
    circumstances: Circumstances

    @property
    def ended(self) -> float:
        """Seconds since 1970."""
        return datetime.fromisoformat(self.began).timestamp() + self.seconds


@dataclass(frozen=True)
class _Stages:
    stages: tuple[StageDone, ...]


def read_stages(folder: Path) -> tuple[StageDone, ...]:
    """In the order in which they ended; none in a folder of before they were kept."""
    path = folder / STAGES
    if not path.exists():
        return ()
    return read_as(path, _Stages).stages


@contextlib.contextmanager
def kept(folder: Path, file: Path, device: "torch.device") -> Iterator[None]:
    """Keep how long the stage that leaves `file` took and where it ran, also if it is stopped."""
    began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()

    def keep(*, finished: bool) -> None:
        _add(
            folder,
            StageDone(file.relative_to(folder).as_posix(), began, time.monotonic() - clock, finished, here(device)),
        )

    try:
        yield
    except BaseException:
        with contextlib.suppress(ExciteError):  # what went wrong first is what to say
            keep(finished=False)
        raise
    keep(finished=True)


def here(device: "torch.device") -> Circumstances:
    """This process, now."""
    import torch

    named = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {"excite": excite.__version__, "Python": platform.python_version()}
    return Circumstances(
        machine=f"{platform.system()} {platform.machine()}, {_processor()}, {cores} core{'s' if cores != 1 else ''}",
        device=named,
        threads=torch.get_num_threads(),
        versions=versions | {name: version(name) for name in PACKAGES},
    )


def _add(folder: Path, stage: StageDone) -> None:
    path = folder / STAGES
    with locked(path):  # the arms of a sweep end at the same time
        write_json(path, asdict(_Stages((*read_stages(folder), stage))))


def _processor() -> str:
    """Its name where the system says it."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "an unnamed processor")
