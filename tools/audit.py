"""Look up the versions of constraints.txt in OSV, the open database of known vulnerabilities.

`python tools/audit.py` exits with 1 if a version has one. Where OSV cannot be reached, it says so and exits with 0.
"""

import json
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
OSV = "https://api.osv.dev/v1/querybatch"
ACCEPTED: dict[str, str] = {}  # vulnerabilities that do not affect excite, each with the reason


def pins(constraints: Path) -> list[str]:
    lines = constraints.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def audit(versions: Sequence[str], database: str = OSV) -> int:
    """Print the known vulnerabilities of pinned versions, such as `numpy==2.0`, and return an exit code."""
    try:
        answers = query(versions, database)
    except (OSError, ValueError, KeyError) as error:
        print(f"No version was looked up: {database} cannot be reached or understood ({error}).")
        return 0
    found = [(pin, each["id"]) for pin, known in zip(versions, answers, strict=True) for each in known.get("vulns", ())]
    counted = [(pin, name) for pin, name in found if name not in ACCEPTED]
    for pin, name in counted:
        print(f"{pin}: https://osv.dev/vulnerability/{name}")
    print(f"{len(counted)} known vulnerabilities in {len(versions)} versions.")
    return 1 if counted else 0


def query(versions: Sequence[str], database: str) -> list[dict[str, Any]]:
    """Return OSV's answer for each version; `vulns` is missing where none is known."""
    queries = []
    for pin in versions:
        name, _, version = pin.partition("==")
        queries.append({"package": {"name": name, "ecosystem": "PyPI"}, "version": version})
    body = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(database, body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        results: list[dict[str, Any]] = json.load(answer)["results"]
    if len(results) != len(versions):
        raise ValueError(f"{len(results)} answers to {len(versions)} questions")
    return results


if __name__ == "__main__":
    sys.exit(audit(pins(CONSTRAINTS)))
