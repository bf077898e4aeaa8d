"""Files and names that mean harm, or hold something else: nothing outside is touched, each is an error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from excite.errors import CorruptFileError, ExciteError, InputError
from excite.files import parse_json, write_json
from excite.runs import load
from excite.runs.experiment import from_values
from excite.runs.folder import RunFolder
from excite.runs.verify import verify
from tests.faults.conftest import EXPERIMENT, outcome

Tell = Callable[[Path], str]

NAMES = ["", ".", "..", "../../x", "/etc/x", "a\\b", "a\nb", "a\x00b", "\x1b[31mred", " x", "x" * 101, "\u202ex"]


@pytest.mark.parametrize("name", NAMES)
def test_an_experiments_name_is_no_path(name: str) -> None:
    with pytest.raises(InputError, match="name"):
        from_values(EXPERIMENT | {"name": name})


@pytest.mark.parametrize("name", [name for name in NAMES if "/" not in name and "\\" not in name and name.strip(".")])
def test_an_attacks_name_fits_a_table(name: str) -> None:
    with pytest.raises(InputError, match="name"):
        from_values(EXPERIMENT | {"attacks": {name: {"kind": "pgd", "eps": 0.1, "step": 0.1}}})


@pytest.mark.parametrize("arm", ["../poe", "poe@..", "poe@a/b", "grid:2/..", "poe\n", ""])
def test_an_arms_name_is_no_path(arm: str) -> None:
    with pytest.raises(InputError):
        from_values(EXPERIMENT | {"arms": [arm]})


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"x = " + b"[" * 5000, b"name = ", b"a" * 2_000_000, b"\x00" * 100],
    ids=["binary", "nested", "cut", "long", "zeros"],
)
def test_a_file_that_is_no_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "experiment.toml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load(str(path))


CONTENTS: dict[str, Any] = {
    "a list": [],
    "a number": 3,
    "no keys": {},
    "null": None,
    "keys renamed": {"rates": 1, "second": 2, "experiments": {}},
    "keys of another kind": {"rate": "high", "seconds": [], "problem": 3, "estimate": 7, "name": {}, "total": "x"},
}


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "bare"])
def test_json_that_holds_something_else(run: Path, told: Tell, kind: str, sealed: bool) -> None:
    for path in sorted(run.rglob("*.json")):
        whole = path.read_bytes()
        if sealed and isinstance(CONTENTS[kind], dict):
            write_json(path, CONTENTS[kind])
        else:
            path.write_text(json.dumps(CONTENTS[kind]), encoding="utf-8")
        assert outcome(told, run) is None, path
        path.write_bytes(whole)


@pytest.mark.parametrize("content", [b"\xff\xff\n", b"[" * 100_000, b"[]\n", b'{"epoch": 1}\n', b"\n\n"])
def test_metrics_that_hold_something_else(run: Path, told: Tell, content: bytes) -> None:
    for path in run.rglob("metrics.jsonl"):
        path.write_bytes(content + path.read_bytes())
    if content.strip():
        assert outcome(told, run) is None


def test_weights_outside_their_folder_are_not_read(run: Path) -> None:
    checkpoint = run / "poe" / "checkpoint.json"
    facts = parse_json(checkpoint)
    for weights in ("../baseline/" + facts["weights"], str(run / "baseline" / facts["weights"]), "..", ""):
        content = {key: value for key, value in facts.items() if key not in ("format", "sha256")}
        write_json(checkpoint, content | {"weights": weights})
        with pytest.raises(CorruptFileError, match="weights"):
            RunFolder(run).arm("poe").load_into(None)  # type: ignore[arg-type]


def test_an_edit_is_named(run: Path, told: Tell) -> None:
    assert not verify(run).problems
    path = run / "poe" / "outcome.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"seconds": ', '"seconds": 1'), encoding="utf-8")
    assert outcome(told, run) is None
    (problem,) = verify(run).problems
    assert "poe/outcome.json" in problem


def test_prettier_files_are_the_same_files(run: Path, told: Tell) -> None:
    before = told(run)
    for path in run.rglob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")), sort_keys=True), encoding="utf-8")
    assert told(run) == before


def test_another_format_of_any_file_is_refused_with_the_cure(run: Path) -> None:
    files = [path for path in RunFolder(run).files() if path.suffix in (".json", ".jsonl")]
    for path in files:
        path.write_text(path.read_text(encoding="utf-8").replace('"format": 1', '"format": 2'), encoding="utf-8")
    with pytest.raises(ExciteError, match="format"):
        _ = RunFolder(run).experiment
    problems = [text for text in verify(run).problems if "format" in text]
    assert len(files) > 10
    assert not [path for path in files if not any(str(path) in text for text in problems)]
