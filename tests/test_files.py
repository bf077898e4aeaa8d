"""A file is whole or not there, says when it was changed, and is made by one process at a time."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from excite.errors import CorruptFileError, ExciteError
from excite.files import atomic, being_made, clear_away, once, read_json, sha256, write_json, write_text


def test_json_and_back(tmp_path: Path) -> None:
    write_json(tmp_path / "new" / "facts.json", {"ε": [1, 2.5, None]})
    assert read_json(tmp_path / "new" / "facts.json") == {"ε": [1, 2.5, None]}


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeDecodeError), atomic(path) as temporary:
        (temporary.write_bytes(b"\xff"), temporary.read_text(encoding="utf-8"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_device_is_named_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ExciteError, match="No space left"), atomic(tmp_path / "f"):
        Path("/dev/full").write_text("more than it holds")


def test_others_may_read_what_we_write(tmp_path: Path) -> None:
    write_text(tmp_path / "file.txt", "")
    assert stat.S_IMODE(os.stat(tmp_path / "file.txt").st_mode) == 0o644  # noqa: PTH116


def test_sha256_of_known_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_broken_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text("{")
    with pytest.raises(CorruptFileError, match="JSON"):
        read_json(tmp_path / "facts.json")


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    (tmp_path / ".facts.json.killed.part").write_text("half")
    (tmp_path / ".other.json.killed.part").write_text("half")
    with atomic(tmp_path / "facts.json") as living:
        living.write_text("{}")
        write_json(tmp_path / "facts.json", {"by": "another"})
        clear_away(tmp_path.rglob(".*.part*"))
        assert [part.name for part in tmp_path.glob(".*.part")] == [living.name]
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]
    assert (tmp_path / "facts.json").read_text() == "{}"


MAKE = """
import sys, time
from pathlib import Path
from excite.files import once

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
