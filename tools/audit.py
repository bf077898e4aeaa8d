"""Look up the versions of constraints.txt in PyPI's list of known vulnerabilities.

`python tools/audit.py` exits with 1 if a version has one. Where PyPI has no answer, it says so and exits with 0.
"""

import json
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
PYPI = "https://pypi.org/pypi"
ACCEPTED: dict[str, str] = {}  # vulnerabilities that do not affect excite, each with the reason


def pins(constraints: Path) -> list[str]:
    lines = constraints.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def audit(versions: Sequence[str], database: str = PYPI) -> int:
    """Print the vulnerabilities of pinned versions, and which versions could not be looked up; return an exit code."""

    def vulnerabilities(pin: str) -> list[dict[str, Any]] | None:
        """None if the database has no answer."""
        try:
            with urllib.request.urlopen(f"{database}/{pin.replace('==', '/')}/json", timeout=5) as answer:  # noqa: S310
                known: list[dict[str, Any]] = json.load(answer)["vulnerabilities"]
        except (OSError, ValueError, KeyError):
            return None
        return [each for each in known if not each.get("withdrawn") and each["id"] not in ACCEPTED]

    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip(versions, pool.map(vulnerabilities, versions), strict=True))
    found = [(pin, each) for pin, known in answers.items() for each in known or ()]
    for pin, each in found:
        names = ", ".join([each["id"], *each.get("aliases", ())])
        print(f"{pin}: {names}; fixed in {', '.join(each.get('fixed_in') or ['no version'])}. {each.get('link', '')}")
    unknown = [pin for pin, known in answers.items() if known is None]
    if len(unknown) == len(answers):
        print(f"No version was looked up: {database} cannot be reached or does not know them.")
        return 0
    if unknown:
        print(f"Not looked up: {', '.join(unknown)}")
    print(f"{len(found)} known vulnerabilities in {len(answers) - len(unknown)} versions.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(audit(pins(CONSTRAINTS)))
