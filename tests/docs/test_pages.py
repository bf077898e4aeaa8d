"""A page of the documentation answers one question in at most 900 words, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EVERY = [*SHORT, ROOT / "CHANGELOG.md", ROOT / "results" / "README.md", *sorted((ROOT / "docs" / "lab").rglob("*.md"))]
MOST_WORDS = 900


@pytest.mark.parametrize("page", SHORT, ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= MOST_WORDS, "move details to docs/lab"


@pytest.mark.parametrize("page", EVERY, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http", "#"))]
    assert [link for link in links if not (page.parent / link.partition("#")[0]).exists()] == []


def test_the_lab_lists_every_study() -> None:
    lab = ROOT / "docs" / "lab"
    index = (lab / "index.md").read_text(encoding="utf-8")
    studies = [*lab.glob("*.md"), *lab.glob("*/README.md")]
    assert [file for file in studies if file.name != "index.md" and str(file.relative_to(lab)) not in index] == []
