import os
import stat
from pathlib import Path

import pytest

from excite.errors import CorruptFileError, ExciteError
from excite.files import atomic, clear_away, read_json, sha256, write_json, write_text


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
    with pytest.raises(ExciteError, match=r"No room left to write .*free some space"), atomic(tmp_path / "f"):
        Path("/dev/full").write_text("more than it holds")


def test_others_may_read_what_we_write(tmp_path: Path) -> None:
    write_text(tmp_path / "file.txt", "")
    assert stat.S_IMODE(os.stat(tmp_path / "file.txt").st_mode) == 0o644  # noqa: PTH116


def test_sha256_of_known_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_broken_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text("{")
    with pytest.raises(CorruptFileError, match="not valid JSON"):
        read_json(tmp_path / "facts.json")


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    (tmp_path / ".facts.json.killed.part").write_text("half")
    (tmp_path / ".other.json.killed.part").write_text("half")
    with atomic(tmp_path / "facts.json") as living:
        living.write_text("{}")
        write_json(tmp_path / "facts.json", {"by": "another"})
        clear_away(tmp_path.rglob(".*.part"))
        assert [part.name for part in tmp_path.glob(".*.part")] == [living.name]
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]
    assert (tmp_path / "facts.json").read_text() == "{}"
