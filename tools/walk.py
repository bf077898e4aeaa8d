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
from pathlib import Path
from types import FrameType

import excite
from excite.cli import cli

PACKAGE = f"{Path(excite.__file__).parent}{os.sep}"
SMALL = ("data.train_examples=640", "data.test_examples=60", "training.epochs=2", "training.batch_size=32")


class Footprints:
    """A profile function that records new files, and whether each is a step back."""

    def __init__(self) -> None:
        self.entered: dict[str, bool] = {}
        self.visited: list[str] = []  # stations; the last one is where the run is

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or file in self.entered or not (file.startswith(PACKAGE) and file.endswith(".py")):
            return
        here = station(file)
        if not here or here in self.visited[-1:]:
            self.entered[file] = False
            return
        running, caller = False, frame.f_back
        while caller and not running:
            running, caller = station(caller.f_code.co_filename) == here, caller.f_back
        self.entered[file] = here in self.visited and not running
        self.visited.append(here)


def station(file: str) -> str:
    folder, separator, _ = file.removeprefix(PACKAGE).partition(os.sep)
    return folder if separator and file.startswith(PACKAGE) else ""


def walk(arguments: list[str]) -> dict[str, bool]:
    """Run the command line in this process, in an empty folder; return the files it enters, True for a step back.

    Everything is imported first, because the bodies of modules and classes do not count.
    """
    for module in pkgutil.walk_packages(excite.__path__, "excite."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # an integration whose package is not installed
                importlib.import_module(module.name)
    footprints = Footprints()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.setprofile(footprints)
        try:
            cli(arguments, standalone_mode=False)
        finally:
            sys.setprofile(None)
    return {Path(file.removeprefix(PACKAGE)).as_posix(): back for file, back in footprints.entered.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every file in order, with steps back marked")
    wanted = parser.parse_args()
    files = walk(["run", "mnist-sample", "--arms", "baseline", *(word for key in SMALL for word in ("--set", key))])
    if wanted.list:
        for file, is_back in files.items():
            print("<- " if is_back else "   ", file, sep="")
    print(f"{len(files)} files, {sum(files.values())} steps back")
