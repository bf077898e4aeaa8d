"""The audit reports known vulnerabilities, and says which versions it could not look up."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.loading import loaded

TOOL = loaded(Path(__file__).parents[2] / "tools/audit.py")
KNOWN = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["2.1"], "link": "", "withdrawn": None}


def answer(database: Path, version: str, known: list[dict[str, Any]]) -> None:
    file = database / "package" / version / "json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"vulnerabilities": known}), encoding="utf-8")


def test_a_known_vulnerability_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(tmp_path, "2.0", [KNOWN])
    answer(tmp_path, "2.1", [KNOWN | {"withdrawn": "2026-01-01T00:00:00Z"}])
    assert TOOL.audit(["package==2.0", "package==2.1"], tmp_path.as_uri()) == 1
    told = capsys.readouterr().out
    assert "package==2.0: PYSEC-1, CVE-1; fixed in 2.1" in told
    assert "package==2.1:" not in told


def test_versions_that_could_not_be_looked_up_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(tmp_path, "2.1", [])
    assert TOOL.audit(["package==2.0", "package==2.1"], tmp_path.as_uri()) == 0
    assert "Not looked up: package==2.0\n" in capsys.readouterr().out


def test_a_database_out_of_reach_is_no_failure_but_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert TOOL.audit(["package==2.0"], "http://127.0.0.1:9") == 0
    assert "cannot be reached" in capsys.readouterr().out


def test_every_pin_is_looked_up() -> None:
    assert {"numpy", "torch"} < {pin.partition("==")[0] for pin in TOOL.pins(TOOL.CONSTRAINTS)}
