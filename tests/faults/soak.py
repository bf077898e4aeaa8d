"""Hours of training, estimating, attacking, reporting in one process: memory and open files stay flat: `make soak`."""

import argparse
import contextlib
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.stats

from excite.errors import DivergedError
from excite.report.page import write_page
from excite.runs.experiment import from_values
from excite.runs.procedure import Run
from tests.faults.conftest import EXPERIMENT, Quiet

WARM_UP = 0.25  # the share of the time in which caches and the allocator's pools may still fill
ALLOWED = 0.02  # of the memory: what the fitted line may grow by over the time that is judged

OBJECTIVES: tuple[dict[str, Any], ...] = (
    {"kind": "standard"},
    {"kind": "trades", "eps": 0.1, "step": 0.05, "steps": 2},
    {"kind": "pgd_at", "eps": 0.1, "step": 0.05, "steps": 2},
)


@dataclass(frozen=True)
class Sample:
    seconds: float
    rounds: int
    megabytes: float  # resident
    handles: int

    @classmethod
    def now(cls, since: float, rounds: int) -> "Sample":
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        return cls(time.monotonic() - since, rounds, megabytes, len([*Path("/proc/self/fd").iterdir()]))

    def __str__(self) -> str:
        return f"{self.seconds:7.0f} s  {self.rounds:5d} rounds  {self.megabytes:7.1f} MB  {self.handles:3d} handles"


@dataclass(frozen=True)
class Verdict:
    """Straight lines through memory and handles, fitted robustly, after the warm-up."""

    samples: int
    rounds: int
    seconds: float
    megabytes: float
    growth: float  # MB, of the line, from its beginning to its end
    handles: float  # the same

    @property
    def flat(self) -> bool:
        return self.growth <= ALLOWED * self.megabytes and self.handles < 0.5

    def __str__(self) -> str:
        return (
            f"{'flat' if self.flat else 'NOT FLAT'}: over the last {self.seconds:.0f} s ({self.rounds} rounds, "
            f"{self.samples} samples) memory went {self.growth:+.1f} MB on {self.megabytes:.1f} MB, at most "
            f"{ALLOWED:.0%} is allowed; open files {self.handles:+.1f}"
        )


def judge(samples: Sequence[Sample]) -> Verdict:
    warm = [sample for sample in samples if sample.seconds >= WARM_UP * samples[-1].seconds]
    times, megabytes = [sample.seconds for sample in warm], [sample.megabytes for sample in warm]
    span = times[-1] - times[0]
    memory, files = (
        scipy.stats.theilslopes(values, times).slope * span for values in (megabytes, [float(s.handles) for s in warm])
    )
    return Verdict(len(warm), warm[-1].rounds - warm[0].rounds, span, megabytes[0], float(memory), float(files))


def once_around(folder: Path, number: int) -> None:
    """One whole run: two arms trained, L from short trainings and from the trace, attacks, images, the page."""
    values = EXPERIMENT | {
        "seed": number,
        "lipschitz": {"method": "edge", "steps": 4},
        "allow_unidentified": True,
        "training": EXPERIMENT["training"] | {"objective": OBJECTIVES[number % len(OBJECTIVES)]},
        "attacks": EXPERIMENT["attacks"]
        | {"AutoAttack": {"kind": "autoattack", "eps": 0.1, "members": ["apgd-ce", "apgd-dlr"], "iterations": 5}},
    }
    run = Run(folder, from_values(values), console=Quiet(), device="cpu")
    with contextlib.suppress(DivergedError):  # where no rate can be found from so few steps, the rest is reported
        run.all()
    write_page([run.files], run.files.path / "report.html")


def soak(seconds: float) -> Iterator[Sample]:
    """Go round until the time is over; a sample after every round."""
    since = time.monotonic()
    rounds = 0
    while rounds < 2 or time.monotonic() - since < seconds:
        folder = Path(tempfile.mkdtemp(prefix="excite-soak-"))
        try:
            once_around(folder / "run", rounds)
        finally:
            shutil.rmtree(folder)
        rounds += 1
        yield Sample.now(since, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds from one printed line to the next")
    options = parser.parse_args()
    samples: list[Sample] = []
    printed = -options.every
    for sample in soak(60 * options.minutes):
        samples.append(sample)
        if sample.seconds >= printed + options.every:
            printed = sample.seconds
            print(sample, judge(samples) if len(samples) > 8 else "", sep="  ", flush=True)
    verdict = judge(samples)
    print(samples[-1], verdict, sep="\n", flush=True)
    sys.exit(not verdict.flat)


if __name__ == "__main__":
    main()
