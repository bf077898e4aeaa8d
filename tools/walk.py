"""Print which files of src/excite a baseline run enters, in which order, and how many steps back it takes.

    python tools/walk.py                # a small run of mnist-sample's baseline, from the command line to the report
    python tools/walk.py --list         # also every file in order, with steps back marked

A file is entered when one of its functions is called; importing it does not count. The folders of src/excite are called
stations; the files beside them belong to none. A step back enters a new file of an earlier station, if the run has been
to other stations since and no function of that station is still running.
"""

import argparse
import contextlib
import importlib
import os
import pkgutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

SMALL = ("data.train_examples=640", "data.test_examples=60", "training.epochs=2", "training.batch_size=32")


@dataclass(frozen=True)
class Walk:
    """The files in the order of their first call, as `station/file.py`, and those that are steps back."""

    files: tuple[str, ...]
    steps_back: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.files)} files, {len(self.steps_back)} steps back"


class Footprints:
    """A profile function that records new files."""

    def __init__(self, package: Path) -> None:
        self.package = f"{package}{os.sep}"
        self.entered: dict[str, None] = {}
        self.steps_back: list[str] = []
        self.here, self.visited = "", set[str]()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        file = frame.f_code.co_filename
        if file.startswith(self.package) and file.endswith(".py") and file not in self.entered:
            self.entered[file] = None
            self._enter(file, frame.f_back)

    def walk(self) -> Walk:
        return Walk(tuple(map(self._name, self.entered)), tuple(map(self._name, self.steps_back)))

    def _enter(self, file: str, caller: FrameType | None) -> None:
        station = self._station(file)
        if not station or station == self.here:
            return
        if station in self.visited and not self._running(station, caller):
            self.steps_back.append(file)
        self.visited.add(station)
        self.here = station

    def _running(self, station: str, frame: FrameType | None) -> bool:
        while frame:
            if self._station(frame.f_code.co_filename) == station:
                return True
            frame = frame.f_back
        return False

    def _station(self, file: str) -> str:
        return self._name(file).rpartition("/")[0].partition("/")[0] if file.startswith(self.package) else ""

    def _name(self, file: str) -> str:
        return Path(file.removeprefix(self.package)).as_posix()


def walk(arguments: Sequence[str]) -> Walk:
    """Run the command line in this process, in an empty folder, and record the files it enters.

    Everything is imported first, because the bodies of modules and classes do not count.
    """
    import excite
    from excite.cli import cli

    for module in pkgutil.walk_packages(excite.__path__, "excite."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # an integration whose package is not installed
                importlib.import_module(module.name)
    footprints = Footprints(Path(excite.__file__).parent)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.setprofile(footprints)
        try:
            cli([*arguments], standalone_mode=False)
        finally:
            sys.setprofile(None)
            os.chdir("/")
    return footprints.walk()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every file in order, with steps back marked")
    wanted = parser.parse_args()
    taken = walk(["run", "mnist-sample", "--arms", "baseline", *(word for key in SMALL for word in ("--set", key))])
    if wanted.list:
        for file in taken.files:
            print("<- " if file in taken.steps_back else "   ", file, sep="")
    print(taken)
