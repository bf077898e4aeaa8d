"""The audit reports known vulnerabilities, and says so if it could not look them up."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.tools.loading import loaded

TOOL = loaded(Path(__file__).parents[2] / "tools/audit.py")


class Database(BaseHTTPRequestHandler):
    """Knows a vulnerability of version 2.0 of any package, and answers as OSV does."""

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        results = [{"vulns": [{"id": "PYSEC-1"}]} if query["version"] == "2.0" else {} for query in queries]
        body = json.dumps({"results": results[: len(queries) if self.path == "/" else -1]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def database() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Database)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_a_known_vulnerability_is_reported(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert TOOL.audit(["package==2.0", "package==2.1"], database) == 1
    told = capsys.readouterr().out
    assert "package==2.0: " in told
    assert "PYSEC-1" in told
    assert "package==2.1:" not in told


def test_versions_without_vulnerabilities_pass(database: str) -> None:
    assert TOOL.audit(["package==2.1"], database) == 0


def test_an_accepted_vulnerability_passes(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOOL.ACCEPTED, "PYSEC-1", "the function is not used")
    assert TOOL.audit(["package==2.0"], database) == 0


def test_an_incomplete_answer_does_not_count(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert TOOL.audit(["package==2.0", "package==2.1"], f"{database}incomplete") == 0
    assert "No version was looked up" in capsys.readouterr().out


def test_a_database_out_of_reach_is_no_failure_but_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert TOOL.audit(["package==2.0"], "http://127.0.0.1:9") == 0
    assert "cannot be reached" in capsys.readouterr().out


def test_every_pin_is_looked_up() -> None:
    assert {"numpy", "torch"} < {pin.partition("==")[0] for pin in TOOL.pins(TOOL.CONSTRAINTS)}
