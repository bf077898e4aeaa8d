"""Many processes want a file; one makes it, also after the one before it was killed."""

import subprocess
import sys
import time
from pathlib import Path

from excite.runs.once import being_made, once

MAKE = """
import sys, time
from pathlib import Path
from excite.runs.once import once

file, log = Path(sys.argv[1]), Path(sys.argv[2])

def make():
    with log.open("a") as lines:
        lines.write("begun\\n")
    time.sleep(float(sys.argv[3]))
    file.write_text("made")

once(file, make)
assert file.read_text() == "made"
"""


def process(file: Path, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", MAKE, file, file.with_suffix(".log"), str(seconds)])


def test_one_makes_it_and_the_others_wait(tmp_path: Path) -> None:
    file = tmp_path / "stage" / "file"
    file.parent.mkdir()
    processes = [process(file, 0.2) for _ in range(4)]
    assert [each.wait(timeout=60) for each in processes] == [0, 0, 0, 0]
    assert file.with_suffix(".log").read_text().splitlines() == ["begun"]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    file = tmp_path / "file"
    dead = process(file, 1000)
    while not file.with_suffix(".log").exists():
        time.sleep(0.02)
    assert being_made(file)
    dead.kill()
    dead.wait()
    assert not being_made(file)
    assert process(file, 0).wait(timeout=60) == 0


def test_what_is_there_is_not_made_again_nor_locked(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("made")
    once(file, lambda: file.write_text("again"))
    assert file.read_text() == "made"
    assert list(tmp_path.iterdir()) == [file]
