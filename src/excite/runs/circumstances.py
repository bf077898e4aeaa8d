"""When, where and with what each stage of a run was done: stages.json, which a stage adds to when it ends."""

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import excite
from excite.errors import ExciteError
from excite.files import expected, read_json, write_json
from excite.runs.once import turn

if TYPE_CHECKING:
    import torch

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


def read_stages(folder: Path) -> tuple[StageDone, ...]:
    """In the order in which they ended; none in a folder of before they were kept."""
    path = folder / STAGES
    if not path.exists():
        return ()
    with expected(path):
        return tuple(
            StageDone(**{**each, "circumstances": Circumstances(**each["circumstances"])})
            for each in read_json(path)["stages"]
        )


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
    with turn(path):  # the arms of a sweep end at the same time
        before = [asdict(each) for each in read_stages(folder)]
        write_json(path, {"stages": [*before, asdict(stage)]})


def _processor() -> str:
    """Its name where the system says it."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "an unnamed processor")
